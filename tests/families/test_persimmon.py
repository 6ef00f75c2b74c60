"""Persimmon against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PersimmonConfig, PersimmonForCausalLM

from tests.families.gated import SMALL
from tests.families.harness import check_eager, check_graphs

ALIKE = SMALL | {"num_key_value_heads": 4}  # Persimmon has no others


@settings(max_examples=8)
@given(
    st.fixed_dictionaries(
        {
            "partial_rotary_factor": st.sampled_from((0.25, 0.5, 1.0)),
            "qk_layernorm": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "hidden_act": st.sampled_from(("relu2", "gelu")),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(PersimmonForCausalLM(PersimmonConfig(**ALIKE | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("Persimmon", PersimmonForCausalLM(PersimmonConfig(**ALIKE)))
