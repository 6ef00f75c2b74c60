"""NLLB-MoE against transformers, whose sum over experts is patched first."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import NllbMoeConfig, NllbMoeForConditionalGeneration
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeExperts

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.harness import check_eager, check_graphs
from tests.families.test_bart import SMALL

SPARSE: dict[str, Any] = {
    **SMALL,
    "num_experts": 4,
    "encoder_sparse_step": 2,
    "decoder_sparse_step": 2,
}


def _sum_of_experts(self: Any, x: Tensor, _mask: Tensor, router_weights: Tensor) -> Tensor:
    """Sums expert outputs by their router weights, as fairseq and transformers 4 do.

    transformers 5.23 uses the 0 and 1 of a mask as expert indexes, so that all tokens go to
    experts 0 and 1 (docs/decisions/0020).
    """
    scale = 1 - self.moe_token_dropout
    outputs = [self[f"expert_{index}"](x) for index in range(self.num_experts)]
    total: Tensor = scale * torch.einsum("etd,te->td", torch.stack(outputs), router_weights)
    return total


@pytest.fixture(scope="module", autouse=True)
def patched_experts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NllbMoeExperts, "forward", _sum_of_experts)
        yield


def model_of(**changes: Any) -> Any:
    return NllbMoeForConditionalGeneration(NllbMoeConfig(**SPARSE | changes))


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "encoder_layers": st.integers(1, 3),
            "decoder_layers": st.integers(1, 3),
            "encoder_sparse_step": st.integers(0, 3),
            "decoder_sparse_step": st.integers(0, 3),
            "num_experts": st.integers(2, 5),
            "router_bias": st.booleans(),
            "normalize_router_prob_before_dropping": st.booleans(),
            "batch_prioritized_routing": st.booleans(),
            "moe_token_dropout": st.sampled_from((0.0, 0.2)),
            "scale_embedding": st.booleans(),
            "activation_function": st.sampled_from(("relu", "gelu", "swish")),
            "expert_capacity": st.sampled_from((1, 64)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(model_of(**changes))


def test_graphs_match_transformers() -> None:
    check_graphs("NLLB-MoE", model_of(router_bias=True))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"second_expert_policy": "sampling"}, UnsupportedError, "second_expert_policy 'sampling'"),
        ({"router_dtype": "bfloat16"}, UnsupportedError, "router_dtype 'bfloat16'"),
        (
            {"moe_eval_capacity_token_fraction": 0.5},
            UnsupportedError,
            r"moe_eval_capacity_token_fraction 0\.5",
        ),
        ({"num_experts": 1}, SourceError, "num_experts is 1"),
    ],
)
def test_unsupported_configuration_is_rejected(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    save(model_of(), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))
