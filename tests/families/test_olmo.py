"""OLMo, OLMo 2, OLMo 3, OLMoE and FlexOlmo against transformers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    FlexOlmoConfig,
    FlexOlmoForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoConfig,
    OlmoeConfig,
    OlmoeForCausalLM,
    OlmoForCausalLM,
)

from tests.families.gated import AXES, SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs

CLIPS = {"clip_qkv": st.sampled_from((None, 0.2))}
BIAS = {"attention_bias": st.booleans()}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
SCALED = {
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 24,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}


@settings(max_examples=10)
@given(st.fixed_dictionaries(AXES | CLIPS | BIAS))
def test_olmo_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(OlmoForCausalLM(OlmoConfig(**SMALL | changes)))


@pytest.mark.parametrize("clip", [None, 0.3])
def test_olmo_graphs_match_transformers(clip: float | None) -> None:
    check_graphs("OLMo", OlmoForCausalLM(OlmoConfig(**SMALL, clip_qkv=clip)))


@settings(max_examples=10)
@given(st.fixed_dictionaries(AXES | BIAS | {"hidden_size": st.sampled_from((64, 80))}))
def test_olmo2_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Olmo2ForCausalLM(Olmo2Config(**SMALL | changes)))


def test_olmo2_graphs_match_transformers() -> None:
    check_graphs("OLMo 2", Olmo2ForCausalLM(Olmo2Config(**SMALL)))


def test_olmo2_graphs_with_padded_heads_match_transformers() -> None:
    # A head size that the fused operator does not support.
    check_graphs("OLMo 2", Olmo2ForCausalLM(Olmo2Config(**SMALL | {"hidden_size": 80})))


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "sliding_window": WINDOWS,
            "layer_types": st.none() | layer_types(),
            "rope_parameters": st.sampled_from((None, SCALED)),
        }
    )
)
def test_olmo3_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Olmo3ForCausalLM(Olmo3Config(**SMALL | changes)))


def test_olmo3_graphs_match_transformers() -> None:
    types = ["sliding_attention", "full_attention"]
    config = Olmo3Config(**SMALL, sliding_window=6, layer_types=types, rope_parameters=SCALED)
    check_graphs("OLMo 3", Olmo3ForCausalLM(config))


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES | CLIPS | {"norm_topk_prob": st.booleans()}))
def test_olmoe_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(OlmoeForCausalLM(OlmoeConfig(**SMALL | EXPERTS | changes)))


def test_olmoe_graphs_match_transformers() -> None:
    check_graphs("OLMoE", OlmoeForCausalLM(OlmoeConfig(**SMALL | EXPERTS)))


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES | BIAS | {"norm_topk_prob": st.booleans()}))
def test_flex_olmo_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(FlexOlmoForCausalLM(FlexOlmoConfig(**SMALL | EXPERTS | changes)))


def test_flex_olmo_graphs_match_transformers() -> None:
    check_graphs("FlexOlmo", FlexOlmoForCausalLM(FlexOlmoConfig(**SMALL | EXPERTS)))
