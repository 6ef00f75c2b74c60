"""Llama against transformers, with every RoPE scaling."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from tests.families.gated import AXES, SMALL
from tests.families.harness import check_eager, check_graphs

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
SCALINGS: tuple[dict[str, Any], ...] = (
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0},
    LLAMA3,
    YARN,
    YARN | {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": False},
    YARN | {"mscale": 0.7, "mscale_all_dim": 0.3},
    YARN | {"attention_factor": 0.8},
)


def model(changes: dict[str, Any]) -> Any:
    return LlamaForCausalLM(LlamaConfig(**SMALL | changes))


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "head_dim": st.sampled_from((None, 8, 20, 24)),
            "attention_bias": st.booleans(),
            "mlp_bias": st.booleans(),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(model(changes))


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_rope_scaling_matches_transformers(scaling: dict[str, Any]) -> None:
    check_eager(model({"rope_parameters": dict(scaling)}))


FACTORS = {"rope_theta": st.sampled_from((100.0, 500_000.0)), "factor": st.floats(1.0, 32.0)}
ORIGINAL = {"original_max_position_embeddings": st.integers(8, 96)}
VARIED: tuple[dict[str, st.SearchStrategy[Any]], ...] = (
    FACTORS | {"rope_type": st.sampled_from(("linear", "dynamic"))},
    FACTORS
    | ORIGINAL
    | {
        "rope_type": st.just("llama3"),
        "low_freq_factor": st.floats(0.5, 2.0),
        "high_freq_factor": st.floats(2.5, 8.0),
    },
    FACTORS
    | ORIGINAL
    | {
        "rope_type": st.just("yarn"),
        "beta_fast": st.floats(4.0, 40.0),
        "beta_slow": st.floats(0.5, 3.0),
        "truncate": st.booleans(),
    },
)


@settings(max_examples=20)
@given(
    st.one_of([st.fixed_dictionaries(varied) for varied in VARIED]),
    st.sampled_from((None, 8, 24)),
)
def test_random_rope_scaling_matches_transformers(
    scaling: dict[str, Any], head_size: int | None
) -> None:
    check_eager(model({"rope_parameters": scaling, "head_dim": head_size}))


def test_graphs_match_transformers() -> None:
    check_graphs("Llama", model({"rope_parameters": dict(LLAMA3)}))


def test_graphs_with_yarn_match_transformers() -> None:
    # A head size that the fused operator does not support.
    check_graphs("Llama", model({"rope_parameters": dict(YARN), "head_dim": 20}))
