"""StarCoder (GPTBigCode) and StarCoder 2 against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tests.families import plain
from tests.families.gated import SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        plain.AXES
        | {
            "multi_query": st.booleans(),
            "scale_attn_weights": st.booleans(),
            "tie_word_embeddings": st.booleans(),
        }
    )
)
def test_starcoder_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GPTBigCodeForCausalLM(GPTBigCodeConfig(**plain.SMALL | changes)))


def test_starcoder_graphs_match_transformers() -> None:
    check_graphs("StarCoder", GPTBigCodeForCausalLM(GPTBigCodeConfig(**plain.SMALL)))


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "num_key_value_heads": st.sampled_from((1, 2, 4)),
            "use_bias": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "sliding_window": st.none() | WINDOWS,
            "norm_epsilon": st.sampled_from((1e-5, 1e-2)),
            "hidden_act": st.sampled_from(("gelu_pytorch_tanh", "gelu")),
        }
    )
)
def test_starcoder2_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Starcoder2ForCausalLM(Starcoder2Config(**SMALL | changes)))


def test_starcoder2_graphs_match_transformers() -> None:
    model = Starcoder2ForCausalLM(Starcoder2Config(**SMALL, sliding_window=6))
    check_graphs("StarCoder 2", model)
