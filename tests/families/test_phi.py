"""Phi-1, Phi-1.5 and Phi-2 against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PhiConfig, PhiForCausalLM

from tests.families.gated import SMALL
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "num_key_value_heads": st.sampled_from((1, 2, 4)),
            "partial_rotary_factor": st.sampled_from((0.25, 0.5, 0.75)),
            "qk_layernorm": st.booleans(),
            "layer_norm_eps": st.sampled_from((1e-5, 1e-2)),
            "hidden_act": st.sampled_from(("gelu_new", "gelu")),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(PhiForCausalLM(PhiConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("Phi, Phi-2", PhiForCausalLM(PhiConfig(**SMALL)))


def test_graphs_with_normalised_heads_match_transformers() -> None:
    check_graphs("Phi, Phi-2", PhiForCausalLM(PhiConfig(**SMALL, qk_layernorm=True)))
