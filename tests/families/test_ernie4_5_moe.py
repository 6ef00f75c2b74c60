"""ERNIE 4.5 as a mixture of experts against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, save
from tests.families.gated import AXES, SMALL, with_choice_bias
from tests.families.harness import check_eager, check_graphs

SIZES: dict[str, Any] = {**SMALL, "moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 48}


def small_model(**changes: Any) -> Any:
    return with_choice_bias(Ernie4_5_MoeForCausalLM(Ernie4_5_MoeConfig(**SIZES | changes)))


@settings(max_examples=15)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "moe_k": st.integers(1, 3),
            "moe_layer_end_index": st.sampled_from((-1, 0)),
            "moe_layer_interval": st.integers(1, 2),
            "moe_layer_start_index": st.integers(0, 2),
            "moe_num_shared_experts": st.integers(0, 2),
            "rope_parameters": st.none()
            | st.just({"rope_type": "default", "rope_theta": 10_000.0}),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(small_model(**changes))


def test_graphs_match_transformers() -> None:
    check_graphs("ERNIE 4.5 MoE", small_model())


@pytest.mark.parametrize("changes", [{"use_bias": True}, {"moe_norm_min": 0.5}])
def test_other_arithmetic_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    save(small_model(), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=f"{next(iter(changes))} .* is not supported"):
        load_checkpoint(str(tmp_path))


def test_predictors_of_several_tokens_are_left_out(tmp_path: Path) -> None:
    """As published."""
    save(small_model(), tmp_path)
    edit_weights(tmp_path, add=("model.mtp_linear_proj.0.weight",))
    assert load_checkpoint(str(tmp_path)).architecture == "Ernie4_5_MoeForCausalLM"
