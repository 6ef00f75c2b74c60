"""Qwen2 and Qwen3 against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.families.gated import AXES, SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs

SLIDING: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
QWEN = AXES | {
    "use_sliding_window": st.booleans(),
    "sliding_window": WINDOWS,
    "max_window_layers": st.integers(0, 2),
}


@settings(max_examples=10)
@given(st.fixed_dictionaries(QWEN))
def test_qwen2_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Qwen2ForCausalLM(Qwen2Config(**SMALL | changes)))


def test_qwen2_graphs_match_transformers() -> None:
    model = Qwen2ForCausalLM(Qwen2Config(**SMALL, **SLIDING))
    check_graphs("Qwen2", model)


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        QWEN | {"attention_bias": st.booleans(), "head_dim": st.sampled_from((16, 24, 32))}
    )
)
def test_qwen3_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Qwen3ForCausalLM(Qwen3Config(**SMALL | changes)))


def test_qwen3_graphs_match_transformers() -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True))
    check_graphs("Qwen3", model)
