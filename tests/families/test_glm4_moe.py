"""GLM-4.5 and dots.llm1 against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Dots1Config, Dots1ForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM

from export.errors import ExportError, SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, save
from tests.families.gated import AXES, SMALL, WINDOWS, layer_types, with_choice_bias
from tests.families.harness import check_eager, check_graphs

SIZES: dict[str, Any] = {
    **SMALL,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
GROUPS = {"n_group": 4, "topk_group": 2}
# Axes of DeepSeek-V3's routing.
ROUTING: dict[str, st.SearchStrategy[Any]] = {
    "first_k_dense_replace": st.integers(0, 2),
    "n_shared_experts": st.integers(1, 2),
    "norm_topk_prob": st.booleans(),
    "num_experts_per_tok": st.integers(1, 3),
    "routed_scaling_factor": st.sampled_from((1.0, 2.5)),
    "topk_group": st.sampled_from((2, 3, 4)),
    "n_group": st.just(4),
}


def small_model(**changes: Any) -> Any:
    return with_choice_bias(Glm4MoeForCausalLM(Glm4MoeConfig(**SIZES | changes)))


@settings(max_examples=15)
@given(
    st.fixed_dictionaries(
        AXES
        | ROUTING
        | {
            "attention_bias": st.booleans(),
            "head_dim": st.sampled_from((16, 24)),
            "use_qk_norm": st.booleans(),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(small_model(**changes))


@settings(max_examples=15)
@given(
    st.fixed_dictionaries(
        AXES
        | ROUTING
        | {
            "attention_bias": st.booleans(),
            "layer_types": st.none() | layer_types(),
            "max_window_layers": st.integers(0, 2),
            "sliding_window": st.none() | WINDOWS,
        }
    )
)
def test_dots1_eager_matches_transformers(changes: dict[str, Any]) -> None:
    if changes["sliding_window"] is None:
        changes["layer_types"] = None
    model = Dots1ForCausalLM(Dots1Config(**SIZES | changes))
    check_eager(
        with_choice_bias(model),
        prepare=lambda folder: edit_json(
            folder / "config.json", layer_types=changes["layer_types"]
        ),
    )


def test_dots1_graphs_match_transformers() -> None:
    sizes: dict[str, Any] = {"first_k_dense_replace": 1, "n_shared_experts": 2}
    model = Dots1ForCausalLM(Dots1Config(**SIZES, **sizes))
    check_graphs("dots.llm1", with_choice_bias(model))


def test_graphs_match_transformers() -> None:
    changes = {"use_qk_norm": True, "routed_scaling_factor": 2.5}
    # With seed 0, rounding to 8 bits lets one token run another expert.
    check_graphs("GLM-4.5", small_model(**changes, **GROUPS), seed=1)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_group": 3}, SourceError, "2 of 8 experts cannot be chosen from 1 of 3 groups"),
        ({"topk_group": 2}, SourceError, "2 of 8 experts cannot be chosen from 2 of 1 groups"),
        ({"n_group": 8}, SourceError, "2 of 8 experts cannot be chosen from 1 of 8 groups"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu' is not supported"),
    ],
)
def test_other_experts_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[ExportError], message: str
) -> None:
    save(small_model(), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))


def test_predictors_of_several_tokens_are_left_out(tmp_path: Path) -> None:
    """As published, after the last layer."""
    save(small_model(), tmp_path)
    edit_weights(tmp_path, add=("model.layers.2.eh_proj.weight",))
    assert load_checkpoint(str(tmp_path)).architecture == "Glm4MoeForCausalLM"
