"""Mellum 2 against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MellumConfig, MellumForCausalLM

from export.errors import ExportError, SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, save
from tests.families.gated import AXES, SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs
from tests.families.test_olmo import SCALED

SIZES: dict[str, Any] = {
    **SMALL,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
KINDS = st.sampled_from(("sparse", "dense"))


@settings(max_examples=15)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "attention_bias": st.booleans(),
            "head_dim": st.sampled_from((16, 24)),
            "layer_types": st.none() | layer_types(),
            "mlp_layer_types": st.none() | st.lists(KINDS, min_size=2, max_size=2),
            "norm_topk_prob": st.booleans(),
            "rope_parameters": st.sampled_from((None, SCALED)),
            "sliding_window": WINDOWS,
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(MellumForCausalLM(MellumConfig(**SIZES | changes)))


def test_graphs_match_transformers() -> None:
    types = ["sliding_attention", "full_attention"]
    changes = {"layer_types": types, "sliding_window": 5, "rope_parameters": SCALED}
    check_graphs("Mellum 2", MellumForCausalLM(MellumConfig(**SIZES | changes)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mlp_layer_types": ["sparse"]}, SourceError, "1 mlp_layer_types for 2 layers"),
        ({"mlp_layer_types": ["sparse", "none"]}, UnsupportedError, "mlp_layer_types 'none'"),
    ],
)
def test_other_layers_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[ExportError], message: str
) -> None:
    save(MellumForCausalLM(MellumConfig(**SIZES)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))


def test_predictors_of_several_tokens_are_left_out(tmp_path: Path) -> None:
    save(MellumForCausalLM(MellumConfig(**SIZES)), tmp_path)
    edit_weights(tmp_path, add=("mtp.layers.0.norm.weight",))
    assert load_checkpoint(str(tmp_path)).architecture == "MellumForCausalLM"
