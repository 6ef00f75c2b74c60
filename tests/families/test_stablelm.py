"""StableLM against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import StableLmConfig, StableLmForCausalLM

from tests.families.gated import SMALL
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        {
            "num_key_value_heads": st.sampled_from((1, 2, 4)),
            "partial_rotary_factor": st.sampled_from((0.25, 0.5, 1.0)),
            "use_qkv_bias": st.booleans(),
            "qk_layernorm": st.booleans(),
            "use_parallel_residual": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "layer_norm_eps": st.sampled_from((1e-5, 1e-2)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(StableLmForCausalLM(StableLmConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("StableLM", StableLmForCausalLM(StableLmConfig(**SMALL, use_qkv_bias=True)))


def test_graphs_of_parallel_branches_match_transformers() -> None:
    changes: dict[str, Any] = {"qk_layernorm": True, "use_parallel_residual": True}
    check_graphs("StableLM", StableLmForCausalLM(StableLmConfig(**SMALL, **changes)))
