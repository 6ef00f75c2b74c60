"""Mistral against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM

from tests.families.gated import AXES, SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES | {"sliding_window": st.none() | WINDOWS, "head_dim": st.sampled_from((None, 16, 32))}
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(MistralForCausalLM(MistralConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("Mistral", MistralForCausalLM(MistralConfig(**SMALL, sliding_window=5)))
