"""Hunyuan, dense, against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import AXES, SMALL
from tests.families.harness import check_eager, check_graphs

SMALL_HEADS = SMALL | {"head_dim": 16}
STRETCHED = {"rope_type": "dynamic", "rope_theta": 10_000.0, "alpha": 1000.0, "factor": 1.0}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "head_dim": st.sampled_from((16, 20)),
            "attention_bias": st.booleans(),
            "rope_parameters": st.none() | st.just(STRETCHED),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(HunYuanDenseV1ForCausalLM(HunYuanDenseV1Config(**SMALL_HEADS | changes)))


def test_graphs_match_transformers() -> None:
    config = HunYuanDenseV1Config(**SMALL_HEADS, rope_parameters=dict(STRETCHED))
    check_graphs("Hunyuan (dense)", HunYuanDenseV1ForCausalLM(config))


def test_heads_that_are_not_normalised_are_refused(tmp_path: Path) -> None:
    save(HunYuanDenseV1ForCausalLM(HunYuanDenseV1Config(**SMALL_HEADS)), tmp_path)
    edit_json(tmp_path / "config.json", use_qk_norm=False)
    with pytest.raises(UnsupportedError, match="use_qk_norm False is not supported"):
        load_checkpoint(str(tmp_path))
