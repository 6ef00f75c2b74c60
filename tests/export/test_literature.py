"""Architectures from papers without known checkpoints, built from the same configurations."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from export.checkpoint import Checkpoint
from export.graphs import export_graphs
from export.parity import TOLERANCE, compare_fp32
from export.smooth_quant import smooth_activations
from model.config import (
    AttentionConfig,
    LayerConfig,
    ModelConfig,
    NormOrder,
    ScoreKind,
    StackConfig,
)
from model.kernels import PositionEncodings, Step
from model.position_config import (
    DisentangledConfig,
    DisentangledTerm,
    DistanceKind,
    PositionKind,
    SignalKind,
)
from model.positions import sinusoids
from model.sublayers import in_order
from model.transformer import Transformer, from_weights
from tests.architectures import BERT, GPT, VASWANI, attention, checkpoint, random_weights, stack
from tests.model.test_scores import with_score


def repeated(stack: StackConfig | None, number: int) -> StackConfig:
    """The first layer of ``stack``, applied ``number`` times with timestep signals."""
    assert stack is not None
    return StackConfig(layers=stack.layers[:1], order=(0,) * number, signal=SignalKind.SINUSOIDAL)


# Universal Transformer (Dehghani et al. 2018), fixed number of steps: one layer on each side.
UNIVERSAL = msgspec.structs.replace(
    VASWANI,
    position=msgspec.structs.replace(VASWANI.position, kind=PositionKind.NONE),
    encoder=repeated(VASWANI.encoder, 3),
    decoder=repeated(VASWANI.decoder, 2),
)
# Positions in every layer, of different weights: no depth signal.
ADDED_POSITIONS = msgspec.structs.replace(
    VASWANI,
    position=msgspec.structs.replace(VASWANI.position, kind=PositionKind.NONE),
    encoder=StackConfig(layers=stack().layers, signal=SignalKind.POSITIONS),
    decoder=StackConfig(layers=stack(cross=True).layers, signal=SignalKind.POSITIONS),
)
_LAYER = stack(order=NormOrder.PRE).layers[0]
# Sandwich Transformers (Press et al. 2020): attentions first, feed-forwards last.
SANDWICH = msgspec.structs.replace(
    GPT, decoder=StackConfig(layers=in_order("ssff", _LAYER), final_norm=_LAYER.norm)
)
# Both stacks, with cross-attention as a sub-layer of its own; the last layer has no state.
SANDWICH_TRANSLATOR = msgspec.structs.replace(
    VASWANI,
    encoder=StackConfig(layers=in_order("ssff", stack().layers[0])),
    decoder=StackConfig(layers=in_order("scscff", stack(cross=True).layers[0])),
)
# Shaw et al. 2018, with keys alone: distances of up to 4 tokens.
_SHAW = DisentangledConfig(
    kind=DistanceKind.CLIPPED,
    span=4,
    max_distance=4,
    terms=(DisentangledTerm.CONTENT_TO_POSITION,),
)


def _with_attention(layer: LayerConfig, self_attention: AttentionConfig) -> LayerConfig:
    return msgspec.structs.replace(layer, attention=self_attention)


SHAW = msgspec.structs.replace(
    BERT,
    position=msgspec.structs.replace(BERT.position, kind=PositionKind.NONE),
    encoder=StackConfig(
        layers=(
            _with_attention(
                stack().layers[0], msgspec.structs.replace(attention(2), disentangled=_SHAW)
            ),
        )
        * 2
    ),
)


def checkpoint_of(config: ModelConfig, name: str) -> Checkpoint:
    return dataclasses.replace(checkpoint(name), config=config, weights=random_weights(config))


@pytest.mark.parametrize(
    ("config", "like"),
    [
        pytest.param(UNIVERSAL, "vaswani", id="universal", marks=pytest.mark.slow),
        pytest.param(SANDWICH, "gpt", id="sandwich"),
        pytest.param(SANDWICH_TRANSLATOR, "vaswani", id="sandwich-translator"),
        pytest.param(ADDED_POSITIONS, "vaswani", id="positions", marks=pytest.mark.slow),
        *[
            pytest.param(
                with_score(VASWANI, score), "vaswani", id=f"{score}", marks=pytest.mark.slow
            )
            for score in (ScoreKind.DOT, ScoreKind.BILINEAR, ScoreKind.COSINE)
        ],
        pytest.param(SHAW, "bert", id="shaw"),
    ],
)
def test_graphs_match_the_eager_module(config: ModelConfig, like: str, tmp_path: Path) -> None:
    source = checkpoint_of(config, like)
    smoothed = smooth_activations(config, source.weights, [[1, 2, 3], [4, 5]])
    graphs = export_graphs(config, smoothed, tmp_path)
    reference = compare_fp32(source, tmp_path, graphs)
    assert reference.max_absolute_error <= TOLERANCE
    assert reference.tokens_equal == reference.tokens_compared


@torch.no_grad()
def test_universal_transformer_matches_the_formula() -> None:
    """Dehghani et al. 2018, equations 4 and 5.

    Each step adds the position and timestep signals, then applies the layer.
    """
    model = from_weights(UNIVERSAL, random_weights(UNIVERSAL))
    ids, lengths = torch.arange(10).view(2, 5), torch.tensor([5, 4], dtype=torch.int32)
    size = UNIVERSAL.hidden_size
    x = model.embedding.look_up(ids)
    for time in (1, 2, 3):
        x = x + sinusoids(5, size) + sinusoids(4, size)[time]
        x = model.encoder.layers[0](x, lengths, PositionEncodings())
    torch.testing.assert_close(model.encode(ids, lengths), x)


@torch.no_grad()
def test_positions_are_added_to_every_layer() -> None:
    model = from_weights(ADDED_POSITIONS, random_weights(ADDED_POSITIONS))
    ids, lengths = torch.arange(10).view(2, 5), torch.tensor([5, 4], dtype=torch.int32)
    x = model.embedding.look_up(ids)
    for layer in model.encoder.layers:
        x = layer(x + sinusoids(5, ADDED_POSITIONS.hidden_size), lengths, PositionEncodings())
    torch.testing.assert_close(model.encode(ids, lengths), x)


def test_partial_layers_have_no_unused_weights() -> None:
    names = random_weights(SANDWICH).keys()
    assert not any(name.startswith("decoder.layers.0.feed_forward") for name in names)
    assert not any(name.startswith("decoder.layers.2.mixer") for name in names)


def decoder_layers(model: Transformer) -> Iterator[Any]:
    yield from model.decoder.layers


@torch.no_grad()
def test_sandwich_decoder_runs_its_sublayers_in_order() -> None:
    """Press et al. 2020: each sub-layer ``norm(x + f(x))`` alone, in the order of the string."""
    model = from_weights(SANDWICH_TRANSLATOR, random_weights(SANDWICH_TRANSLATOR))
    ids, lengths = torch.arange(10).view(2, 5), torch.tensor([5, 4], dtype=torch.int32)
    step = Step.whole(torch.tensor([5, 5]), lengths)
    encoded = model.encode(ids, lengths)
    x = model.embedding(model.embedding.look_up(ids), torch.arange(5), None)
    for letter, layer in zip("scscff", decoder_layers(model), strict=True):
        if letter == "s":
            x = layer.mixer_norm(x + layer.mixer(x, step, {}, PositionEncodings()).output)
        elif letter == "c":
            source = layer.cross_attention.project_source(encoded)
            x = layer.cross_attention_norm(x + layer.cross_attention(x, step, source).output)
        else:
            x = layer.feed_forward_norm(x + layer.feed_forward(x))
    actual = model.decode(ids, step, model.encode_source(ids, lengths)).hidden
    torch.testing.assert_close(actual, x)


@pytest.mark.parametrize("order", ["scf", "ss", "sxf"])
def test_refuses_orders_that_do_not_fit(order: str) -> None:
    """Cross-attention without a source, no feed-forward, an unknown letter."""
    layer = stack().layers[0]
    with pytest.raises(ValueError, match="sublayers"):
        in_order(order, layer)
