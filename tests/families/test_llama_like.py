"""Arcee, ERNIE 4.5, Helium, Jais 2, Ministral and Seed-OSS against transformers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    ArceeConfig,
    ArceeForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    HeliumConfig,
    HeliumForCausalLM,
    Jais2Config,
    Jais2ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
)

from tests.families.gated import AXES, SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs

BIASES = {"attention_bias": st.booleans(), "mlp_bias": st.booleans()}
HEADS = {"head_dim": st.sampled_from((16, 24))}
# Configuration, model and test axes of each.
FAMILIES: dict[str, tuple[Any, Any, dict[str, st.SearchStrategy[Any]]]] = {
    "Arcee": (ArceeConfig, ArceeForCausalLM, BIASES | HEADS),
    "ERNIE 4.5": (Ernie4_5Config, Ernie4_5ForCausalLM, HEADS | {"use_bias": st.booleans()}),
    "Helium": (HeliumConfig, HeliumForCausalLM, BIASES | {"head_dim": st.just(16)}),
    "Jais 2": (
        Jais2Config,
        Jais2ForCausalLM,
        BIASES
        | HEADS
        | {
            "layer_norm_eps": st.sampled_from((1e-5, 1e-2)),
            "hidden_act": st.sampled_from(("relu2", "silu")),
        },
    ),
    "Ministral": (
        MinistralConfig,
        MinistralForCausalLM,
        HEADS | {"sliding_window": WINDOWS, "layer_types": st.none() | layer_types()},
    ),
    "Seed-OSS": (
        SeedOssConfig,
        SeedOssForCausalLM,
        BIASES | HEADS | {"attention_out_bias": st.booleans()},
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=8)
@given(data=st.data())
def test_eager_matches_transformers(name: str, data: st.DataObject) -> None:
    config, model, axes = FAMILIES[name]
    changes = data.draw(st.fixed_dictionaries(AXES | axes))
    check_eager(model(config(**SMALL | changes)))


@pytest.mark.parametrize("name", FAMILIES)
def test_graphs_match_transformers(name: str) -> None:
    config, model, _ = FAMILIES[name]
    check_graphs(name, model(config(**SMALL | {"head_dim": 16})))
