"""Granite, Granite MoE and Granite 4 against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM,
)

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import AXES, SMALL
from tests.families.harness import check_eager, check_graphs

MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 6.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.1,
}
MULTIPLIED = {name: st.sampled_from((1.0, value)) for name, value in MULTIPLIERS.items()}
BIAS = {"attention_bias": st.booleans()}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
HYBRID: dict[str, Any] = {
    "num_local_experts": 0,
    "shared_intermediate_size": 80,
    "layer_types": ["full_attention", "full_attention"],
    "mamba_n_heads": 4,
    "mamba_d_state": 16,
}


@settings(max_examples=10)
@given(st.fixed_dictionaries(AXES | MULTIPLIED | BIAS | {"mlp_bias": st.booleans()}))
def test_granite_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GraniteForCausalLM(GraniteConfig(**SMALL | changes)))


def test_granite_graphs_match_transformers() -> None:
    check_graphs("Granite", GraniteForCausalLM(GraniteConfig(**SMALL, **MULTIPLIERS)))


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES | MULTIPLIED | BIAS))
def test_granitemoe_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GraniteMoeForCausalLM(GraniteMoeConfig(**SMALL | EXPERTS | changes)))


def test_granitemoe_graphs_match_transformers() -> None:
    config = GraniteMoeConfig(**SMALL, **EXPERTS, **MULTIPLIERS)
    check_graphs("Granite MoE", GraniteMoeForCausalLM(config))


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES | MULTIPLIED | BIAS | {"shared_intermediate_size": st.sampled_from((0, 80))}
    )
)
def test_granitemoeshared_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GraniteMoeSharedForCausalLM(GraniteMoeSharedConfig(**SMALL | EXPERTS | changes)))


def test_granitemoeshared_graphs_match_transformers() -> None:
    sizes = {**SMALL, **EXPERTS, "shared_intermediate_size": 80}
    config = GraniteMoeSharedConfig(**sizes, **MULTIPLIERS)
    check_graphs("Granite MoE (shared expert)", GraniteMoeSharedForCausalLM(config))


@settings(max_examples=8)
@given(
    st.fixed_dictionaries(
        AXES | MULTIPLIED | BIAS | {"position_embedding_type": st.sampled_from((None, "rope"))}
    )
)
def test_granite4_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GraniteMoeHybridForCausalLM(GraniteMoeHybridConfig(**SMALL | HYBRID | changes)))


def test_granite4_graphs_match_transformers() -> None:
    config = GraniteMoeHybridConfig(**SMALL, **HYBRID, position_embedding_type="rope")
    check_graphs("Granite 4 (dense)", GraniteMoeHybridForCausalLM(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["attention", "mamba"]}, "layer_types 'mamba' is not supported"),
        ({"num_local_experts": 8}, "num_local_experts 8 is not supported"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type 'alibi' is not supported"),
    ],
)
def test_recurrent_layers_and_experts_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(GraniteMoeHybridForCausalLM(GraniteMoeHybridConfig(**SMALL, **HYBRID)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


def test_logits_are_not_divided_by_zero(tmp_path: Path) -> None:
    save(GraniteForCausalLM(GraniteConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", logits_scaling=0.0)
    with pytest.raises(SourceError, match="logits_scaling is 0"):
        load_checkpoint(str(tmp_path))
