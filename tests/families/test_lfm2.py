"""LFM2, LFM2 MoE and LFM3 against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2Model,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    Lfm3Config,
    Lfm3ForCausalLM,
)

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import SMALL
from tests.families.harness import check_eager, check_graphs

CONVOLUTION, ATTENTION = "conv", "full_attention"
AXES: dict[str, st.SearchStrategy[Any]] = {
    "num_key_value_heads": st.sampled_from((1, 2, 4)),
    "tie_word_embeddings": st.booleans(),
    "norm_eps": st.sampled_from((1e-6, 1e-2)),
    "conv_bias": st.booleans(),
    "conv_L_cache": st.sampled_from((2, 3, 5)),
    "layer_types": st.permutations((CONVOLUTION, ATTENTION)) | st.just([ATTENTION] * 2),
}
SIZES = {
    "block_auto_adjust_ff_dim": st.booleans(),
    "block_ffn_dim_multiplier": st.sampled_from((1.0, 1.3)),
    "block_multiple_of": st.sampled_from((16, 32)),
}
SMALL_LFM2 = SMALL | {"layer_types": [CONVOLUTION, ATTENTION]}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "num_dense_layers": 1,
}


@settings(max_examples=12)
@given(st.fixed_dictionaries(AXES | SIZES))
def test_lfm2_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Lfm2ForCausalLM(Lfm2Config(**SMALL_LFM2 | changes)))


def test_lfm2_graphs_match_transformers() -> None:
    types = [CONVOLUTION, ATTENTION, CONVOLUTION]
    config = Lfm2Config(**SMALL | {"num_hidden_layers": 3}, layer_types=types)
    check_graphs("LFM2", Lfm2ForCausalLM(config))


def with_expert_bias(model: Any) -> Any:
    """``model`` with random biases of experts, which have no gradients and so stay 0."""
    generator = torch.Generator().manual_seed(0)
    for name, bias in model.named_buffers():
        if name.endswith("expert_bias"):
            bias.copy_(0.3 * torch.randn(bias.shape, generator=generator))
    return model


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "use_expert_bias": st.booleans(),
            "norm_topk_prob": st.booleans(),
            "num_dense_layers": st.sampled_from((0, 1, 2)),
            "routed_scaling_factor": st.sampled_from((1.0, 2.5)),
        }
    )
)
def test_lfm2_moe_eager_matches_transformers(changes: dict[str, Any]) -> None:
    config = Lfm2MoeConfig(**SMALL_LFM2 | EXPERTS | changes)
    check_eager(with_expert_bias(Lfm2MoeForCausalLM(config)))


def test_lfm2_moe_graphs_match_transformers() -> None:
    config = Lfm2MoeConfig(**SMALL_LFM2, **EXPERTS)
    check_graphs("LFM2 MoE", with_expert_bias(Lfm2MoeForCausalLM(config)))


LFM3: dict[str, Any] = SMALL | {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "layer_types": [CONVOLUTION, "sliding_attention", ATTENTION],
    "sliding_window": 6,
}
THIRD = {ATTENTION: {"rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": 0.3}}


@settings(max_examples=16)
@given(
    st.fixed_dictionaries(
        {
            "num_key_value_heads": st.sampled_from((1, 2, 4)),
            "head_dim": st.sampled_from((16, 32)),
            "tie_word_embeddings": st.booleans(),
            "norm_eps": st.sampled_from((1e-6, 1e-2)),
            "conv_bias": st.booleans(),
            "conv_L_cache": st.sampled_from((2, 7)),
            "sliding_window": st.sampled_from((3, 8)),
            "use_sandwich_norm": st.booleans(),
            "use_attention_gate": st.booleans(),
            "attention_bias": st.booleans(),
            "layer_types": st.permutations(LFM3["layer_types"]),
            "rope_parameters": st.sampled_from(
                (None, THIRD | {"sliding_attention": {"rope_type": "default", "rope_theta": 5e3}})
            ),
        }
    )
)
def test_lfm3_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Lfm3ForCausalLM(Lfm3Config(**LFM3 | changes)))


def test_lfm3_graphs_match_transformers() -> None:
    check_graphs("LFM3", Lfm3ForCausalLM(Lfm3Config(**LFM3)))


def last_hidden(model: Any, ids: Tensor) -> Tensor:
    hidden: Tensor = model(ids).last_hidden_state
    return hidden


@settings(max_examples=4)
@given(st.fixed_dictionaries(AXES))
def test_lfm2_embedder_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Lfm2Model(Lfm2Config(**SMALL_LFM2 | changes)), expected=last_hidden)


def test_lfm2_embedder_graph_matches_transformers() -> None:
    check_graphs("LFM2 (embeddings)", Lfm2Model(Lfm2Config(**SMALL_LFM2)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"layer_types": ["conv", "mamba"]}, UnsupportedError, "layer_types 'mamba' is not sup"),
        ({"layer_types": ["conv"]}, SourceError, "1 layer_types for 2 layers"),
        ({"conv_L_cache": 1}, SourceError, "conv_L_cache is 1"),
        ({"architectures": ["Lfm2Model"], "is_causal": False}, UnsupportedError, "convolutions"),
    ],
)
def test_other_layers_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    save(Lfm2ForCausalLM(Lfm2Config(**SMALL_LFM2)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))


def test_attention_layers_of_the_first_configurations(tmp_path: Path) -> None:
    """They have ``full_attn_idxs``, ``block_ff_dim`` and ``tie_embedding``."""
    save(Lfm2ForCausalLM(Lfm2Config(**SMALL_LFM2)), tmp_path)
    expected = load_checkpoint(str(tmp_path)).config
    removed: dict[str, Any] = {
        "layer_types": None,
        "intermediate_size": None,
        "tie_word_embeddings": None,
    }
    first = {"full_attn_idxs": [1], "block_ff_dim": SMALL["intermediate_size"]}
    edit_json(tmp_path / "config.json", **removed, **first, tie_embedding=True)
    assert load_checkpoint(str(tmp_path)).config == expected
