"""Command R (Cohere) and Command R7B (Cohere 2) against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Cohere2Config, Cohere2ForCausalLM, CohereConfig, CohereForCausalLM

from tests.families.gated import SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs

AXES: dict[str, st.SearchStrategy[Any]] = {
    "num_key_value_heads": st.sampled_from((1, 2, 4)),
    "layer_norm_eps": st.sampled_from((1e-5, 1e-2)),
    "logit_scale": st.sampled_from((0.0625, 1.0)),
    "attention_bias": st.booleans(),
}


@settings(max_examples=10)
@given(st.fixed_dictionaries(AXES | {"use_qk_norm": st.booleans()}))
def test_cohere_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(CohereForCausalLM(CohereConfig(**SMALL | changes)))


def test_cohere_graphs_match_transformers() -> None:
    check_graphs("Cohere", CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.5)))


def test_cohere_graphs_with_normalised_heads_match_transformers() -> None:
    check_graphs("Cohere", CohereForCausalLM(CohereConfig(**SMALL, use_qk_norm=True)))


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES | {"sliding_window": WINDOWS, "layer_types": st.none() | layer_types()}
    )
)
def test_cohere2_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Cohere2ForCausalLM(Cohere2Config(**SMALL | changes)))


def test_cohere2_graphs_match_transformers() -> None:
    types = ["sliding_attention", "full_attention"]
    config = Cohere2Config(**SMALL, sliding_window=6, layer_types=types)
    check_graphs("Cohere 2", Cohere2ForCausalLM(config))
