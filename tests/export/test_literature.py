"""Architectures from papers without known checkpoints, built from the same configurations."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from export.attention_graph import add_attention_graph
from export.checkpoint import Checkpoint
from export.decoding import prefill_source
from export.errors import UnsupportedError
from export.graphs import export_graphs
from export.parity import compare_fp32
from export.parity_reference import TOLERANCE
from export.runtime import DecodeSession, Session
from export.smooth_quant import smooth_activations
from export.supported import check_device_supported
from model.bundle import ATTEND, AttentionKind, Device, Precision
from model.config import ModelConfig, NormOrder, ScoreKind, StackConfig
from model.eager import EagerKernels
from model.kernels import PositionEncodings, Step
from model.position_config import (
    PositionKind,
    RelativePositionConfig,
    SignalKind,
    SignalTarget,
)
from model.positions import sinusoids
from model.sublayers import in_order
from model.transformer import Transformer, from_weights
from tests.architectures import ARCHITECTURES, BERT, GPT, VASWANI, checkpoint, random_weights, stack
from tests.model.test_scores import with_score
from tests.model.test_signals import concatenated, with_attention, with_signal


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


def without_positions(config: ModelConfig) -> ModelConfig:
    position = msgspec.structs.replace(config.position, kind=PositionKind.NONE)
    return msgspec.structs.replace(config, position=position)


# Shaw et al. 2018: keys alone in an encoder, and the whole in an encoder-decoder that is pre-norm.
SHAW_KEYS = with_attention(
    without_positions(BERT), relative=RelativePositionConfig(max_distance=4, values=False)
)
SHAW = with_attention(
    msgspec.structs.replace(
        without_positions(VASWANI),
        encoder=stack(order=NormOrder.PRE, num_kv_heads=2),
        decoder=stack(order=NormOrder.PRE, num_kv_heads=2, cross=True),
    ),
    relative=RelativePositionConfig(max_distance=3, per_head=True),
)
ADDITIVE = with_score(VASWANI, ScoreKind.ADDITIVE)
QUERY_AND_KEY = with_signal(without_positions(GPT), SignalTarget.QUERY, SignalTarget.KEY)


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
        pytest.param(ADDITIVE, "vaswani", id="additive", marks=pytest.mark.slow),
        pytest.param(SHAW_KEYS, "bert", id="shaw-keys"),
        pytest.param(SHAW, "vaswani", id="shaw", marks=pytest.mark.slow),
        pytest.param(QUERY_AND_KEY, "gpt", id="query-and-key"),
        pytest.param(concatenated(BERT, 24), "bert", id="concatenated"),
    ],
)
def test_graphs_match_the_eager_module(config: ModelConfig, like: str, tmp_path: Path) -> None:
    source = checkpoint_of(config, like)
    smoothed = smooth_activations(config, source.weights, [[1, 2, 3], [4, 5]])
    graphs = export_graphs(config, smoothed, tmp_path)
    reference = compare_fp32(source, tmp_path, graphs)
    assert reference.max_absolute_error <= TOLERANCE
    assert reference.tokens_equal == reference.tokens_compared


def test_relative_values_are_rejected_on_cuda() -> None:
    check_device_supported(SHAW, Device.CPU, Precision.FP32)
    check_device_supported(SHAW_KEYS, Device.CUDA, Precision.FP16)
    with pytest.raises(UnsupportedError, match="relative positions of values"):
        check_device_supported(SHAW, Device.CUDA, Precision.FP16)


def test_an_lstm_in_bf16_is_rejected_on_cuda() -> None:
    lstm = ARCHITECTURES["lstm-general"]
    check_device_supported(lstm, Device.CPU, Precision.BF16)
    check_device_supported(lstm, Device.CUDA, Precision.FP16)
    check_device_supported(ARCHITECTURES["gru-fixed"], Device.CUDA, Precision.BF16)
    with pytest.raises(UnsupportedError, match="no LSTM in it on --device cuda"):
        check_device_supported(lstm, Device.CUDA, Precision.BF16)


class RecordingKernels(EagerKernels):
    """Keeps the weights of each attention, in the order in which they run."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def drop_weights(self, weights: torch.Tensor) -> torch.Tensor:
        self.weights.append(weights)
        return weights


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("config", [ADDITIVE, SHAW], ids=["additive", "shaw"])
def test_attention_weights_match_the_eager_module(config: ModelConfig, tmp_path: Path) -> None:
    weights = random_weights(config)
    graphs = export_graphs(config, weights, tmp_path)
    graph = add_attention_graph(graphs, tmp_path)[ATTEND]
    ids, source = [[3, 14, 15, 9]], [[2, 7, 18, 28, 5]]
    decoder = DecodeSession(tmp_path, graph, num_slots=1, capacity=6, source_capacity=5)
    prefill_source(Session(tmp_path, graphs["encode"]), decoder, source)
    found = decoder.step_outputs(
        (AttentionKind.CROSS, AttentionKind.SELF),
        token_ids=np.array(ids),
        logit_positions=np.array([3]),
        num_cached_tokens=np.array([0]),
        num_new_tokens=np.array([4]),
        max_total_length=np.array(4),
        source_lengths=np.array([5]),
        max_source_length=np.array(5),
    )
    kernels = RecordingKernels()
    model = from_weights(config, weights, kernels)
    states = model.encode_source(torch.tensor(source), torch.tensor([5], dtype=torch.int32))
    kernels.weights.clear()
    step = Step.whole(torch.tensor([4]), torch.tensor([5]))
    model.decode(torch.tensor(ids), step, states)
    for kind, start in ((AttentionKind.SELF, 0), (AttentionKind.CROSS, 1)):
        expected = torch.stack(kernels.weights[start::2], 1).numpy()
        np.testing.assert_allclose(found[kind], expected, atol=1e-5)


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
