"""GLM-4 and GLM-4-0414 against transformers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Glm4Config, Glm4ForCausalLM, GlmConfig, GlmForCausalLM

from tests.families.gated import AXES, SMALL
from tests.families.harness import check_eager, check_graphs

FAMILIES = {"GLM-4": (GlmConfig, GlmForCausalLM), "GLM-4-0414": (Glm4Config, Glm4ForCausalLM)}


def small(name: str, changes: dict[str, Any]) -> Any:
    config, model = FAMILIES[name]
    return model(config(**SMALL | {"head_dim": 16} | changes))


@settings(max_examples=16)
@given(
    st.sampled_from(tuple(FAMILIES)),
    st.fixed_dictionaries(
        AXES
        | {
            "head_dim": st.sampled_from((16, 24)),
            "partial_rotary_factor": st.sampled_from((0.5, 1.0)),
            "attention_bias": st.booleans(),
        }
    ),
)
def test_eager_matches_transformers(name: str, changes: dict[str, Any]) -> None:
    check_eager(small(name, changes))


@pytest.mark.parametrize("name", FAMILIES)
def test_graphs_match_transformers(name: str) -> None:
    check_graphs(name, small(name, {}))
