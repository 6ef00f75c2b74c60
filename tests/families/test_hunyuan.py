"""Hunyuan, dense and as a mixture of experts, against transformers."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
)

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import AXES, SMALL
from tests.families.harness import check_eager, check_graphs

SMALL_HEADS = SMALL | {"head_dim": 16}
EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_topk": 2}
STRETCHED = {"rope_type": "dynamic", "rope_theta": 10_000.0, "alpha": 1000.0, "factor": 1.0}
AXES_OF_BOTH = AXES | {
    "head_dim": st.sampled_from((16, 20)),
    "attention_bias": st.booleans(),
    "rope_parameters": st.none() | st.just(STRETCHED),
}


@settings(max_examples=10)
@given(st.fixed_dictionaries(AXES_OF_BOTH))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(HunYuanDenseV1ForCausalLM(HunYuanDenseV1Config(**SMALL_HEADS | changes)))


def test_graphs_match_transformers() -> None:
    config = HunYuanDenseV1Config(**SMALL_HEADS, rope_parameters=dict(STRETCHED))
    check_graphs("Hunyuan (dense)", HunYuanDenseV1ForCausalLM(config))


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES_OF_BOTH
        | {"num_experts": st.integers(2, 4), "moe_topk": st.sampled_from((1, 2, [2, 1]))}
    )
)
def test_experts_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(HunYuanMoEV1ForCausalLM(HunYuanMoEV1Config(**SMALL_HEADS | changes)))


def test_experts_graphs_match_transformers() -> None:
    config = HunYuanMoEV1Config(**SMALL_HEADS, **EXPERTS)
    check_graphs("Hunyuan (experts)", HunYuanMoEV1ForCausalLM(config))


@pytest.mark.parametrize("active", [[2], [2, 0]])
def test_each_layer_needs_a_number_of_experts(tmp_path: Path, active: list[int]) -> None:
    save(HunYuanMoEV1ForCausalLM(HunYuanMoEV1Config(**SMALL_HEADS, **EXPERTS)), tmp_path)
    edit_json(tmp_path / "config.json", moe_topk=active)
    with pytest.raises(SourceError, match=f"moe_topk is {re.escape(str(active))} for 2 layers"):
        load_checkpoint(str(tmp_path))


def test_heads_that_are_not_normalised_are_refused(tmp_path: Path) -> None:
    save(HunYuanDenseV1ForCausalLM(HunYuanDenseV1Config(**SMALL_HEADS)), tmp_path)
    edit_json(tmp_path / "config.json", use_qk_norm=False)
    with pytest.raises(UnsupportedError, match="use_qk_norm False is not supported"):
        load_checkpoint(str(tmp_path))
