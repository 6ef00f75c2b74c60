"""Padding attention heads keeps the outputs and allows fused operators."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from export.checkpoint import Checkpoint, check_weights
from export.graphs import export_graphs
from export.head_padding import pad_heads
from export.parity import compare_fp32
from export.parity_reference import TOLERANCE
from model.config import LayerConfig, NormConfig, NormKind
from model.kernels import Step
from model.position_config import (
    DisentangledConfig,
    DisentangledTerm,
    DistanceKind,
    RelativePositionConfig,
    RotaryConfig,
)
from model.transformer import from_weights
from tests import architectures


def with_heads(name: str, head_size: int, **attention: Any) -> Checkpoint:
    """The architecture ``name`` with heads of ``head_size`` and random weights."""

    def changed(layer: LayerConfig) -> LayerConfig:
        parts = {"attention": layer.attention, "cross_attention": layer.cross_attention}
        changes = {
            part: msgspec.structs.replace(
                value, head_size=head_size, **(attention if part == "attention" else {})
            )
            for part, value in parts.items()
            if value is not None
        }
        return msgspec.structs.replace(layer, **changes)

    checkpoint = architectures.checkpoint(name)
    config = checkpoint.config
    stacks = {
        part: msgspec.structs.replace(stack, layers=tuple(map(changed, stack.layers)))
        for part, stack in (("encoder", config.encoder), ("decoder", config.decoder))
        if stack is not None
    }
    config = msgspec.structs.replace(config, **stacks)
    weights = architectures.random_weights(config)
    return dataclasses.replace(checkpoint, config=config, weights=weights)


@torch.no_grad()
def logits(checkpoint: Checkpoint) -> torch.Tensor:
    model = from_weights(checkpoint.config, checkpoint.weights).double()
    ids, lengths = torch.arange(24).view(2, 12), torch.tensor([12, 7], dtype=torch.int32)
    if checkpoint.config.decoder is None:
        return model.pool(model.encode(ids, lengths, torch.zeros_like(ids)), lengths)
    if checkpoint.config.encoder is None:
        return model.logits(model.decode(ids, Step.whole(lengths)).hidden)
    states = model.encode_source(ids, lengths)
    return model.logits(model.decode(ids, Step.whole(lengths, lengths), states).hidden)


BOTH = DisentangledConfig(
    kind=DistanceKind.CLIPPED, span=4, max_distance=4, terms=tuple(DisentangledTerm)
)
RMS = NormConfig(kind=NormKind.RMS, epsilon=1e-2)


@pytest.mark.parametrize(
    ("name", "head_size", "attention", "padded_size"),
    [
        ("gpt", 13, {}, 16),
        ("vaswani", 20, {}, 24),
        ("bert", 12, {"disentangled": BOTH}, 16),
        ("bert", 12, {"relative": RelativePositionConfig(max_distance=3)}, 16),
        ("bert", 12, {"num_global_tokens": 1, "window": 3}, 16),
        ("llama", 20, {"rotary": RotaryConfig()}, 32),
        ("llama", 24, {"rotary": RotaryConfig(size=8, base=100.0)}, 32),
        ("llama", 40, {"rotary": RotaryConfig(), "head_norm": RMS, "scale": 0.3}, 48),
    ],
)
def test_padding_heads_keeps_the_outputs(
    name: str, head_size: int, attention: dict[str, Any], padded_size: int
) -> None:
    before = with_heads(name, head_size, **attention)
    after = pad_heads(before)
    check_weights(after.config, after.weights)
    sizes = {
        part.head_size
        for stack in (after.config.encoder, after.config.decoder)
        for layer in (stack.layers if stack else ())
        for part in (layer.attention, layer.cross_attention)
        if part is not None
    }
    assert sizes == {padded_size}
    torch.testing.assert_close(logits(after), logits(before), rtol=0, atol=1e-5)


def test_supported_head_sizes_are_not_padded() -> None:
    checkpoint = architectures.checkpoint("llama")
    assert pad_heads(checkpoint) is checkpoint


@pytest.mark.slow
def test_graphs_with_padded_cross_attention_match_eager(tmp_path: Path) -> None:
    checkpoint = pad_heads(with_heads("vaswani", 20))
    graphs = export_graphs(checkpoint.config, checkpoint.weights, tmp_path)
    reference = compare_fp32(checkpoint, tmp_path, graphs)
    assert reference.max_absolute_error <= TOLERANCE
    assert reference.tokens_equal == reference.tokens_compared > 0
