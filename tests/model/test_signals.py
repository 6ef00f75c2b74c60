"""Positions that enter elsewhere than in a sum of embeddings, and their cache in a decoder."""

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import (
    AttentionConfig,
    LayerConfig,
    ModelConfig,
    ScoreKind,
    StackConfig,
)
from model.eager import split_qkv
from model.kernels import Step
from model.mixers import CausalAttention
from model.position_config import (
    PositionKind,
    PositionPlacement,
    RelativePositionConfig,
    SignalKind,
    SignalTarget,
)
from model.positions import sinusoids
from model.stacks import Decoder
from model.transformer import Transformer, from_weights, parameter_shapes
from tests.architectures import BERT, GPT, SSRU, random_weights, stack
from tests.model.test_scores import with_score

PLAIN = msgspec.structs.replace(
    GPT, position=msgspec.structs.replace(GPT.position, kind=PositionKind.NONE)
)


def with_attention(config: ModelConfig, **changes: object) -> ModelConfig:
    """``config`` with these fields in the self-attention of its decoder and encoder."""

    def layer(old: LayerConfig) -> LayerConfig:
        assert old.attention is not None
        changed: AttentionConfig = msgspec.structs.replace(old.attention, **changes)
        return msgspec.structs.replace(old, attention=changed)

    stacks = {
        name: msgspec.structs.replace(layers, layers=tuple(map(layer, layers.layers)))
        for name, layers in (("encoder", config.encoder), ("decoder", config.decoder))
        if layers is not None
    }
    return msgspec.structs.replace(config, **stacks)


def with_signal(config: ModelConfig, *targets: SignalTarget) -> ModelConfig:
    """``config`` with positions in every layer, of its decoder and its encoder."""
    stacks = {
        name: msgspec.structs.replace(layers, signal=SignalKind.POSITIONS, signal_targets=targets)
        for name, layers in (("encoder", config.encoder), ("decoder", config.decoder))
        if layers is not None
    }
    return msgspec.structs.replace(config, **stacks)


def concatenated(config: ModelConfig, size: int | None) -> ModelConfig:
    position = msgspec.structs.replace(
        config.position, placement=PositionPlacement.CONCATENATED, size=size
    )
    return msgspec.structs.replace(config, position=position)


DECODERS = {
    "additive": with_score(with_attention(PLAIN, num_kv_heads=2), ScoreKind.ADDITIVE),
    "relative": with_attention(PLAIN, relative=RelativePositionConfig(max_distance=2)),
    "query and key": with_signal(PLAIN, SignalTarget.QUERY, SignalTarget.KEY),
    "concatenated": concatenated(GPT, 24),
}
MODELS: dict[str, Transformer] = {
    name: from_weights(config, random_weights(config)) for name, config in DECODERS.items()
}


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@torch.no_grad()
@settings(max_examples=10)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 999))
@pytest.mark.parametrize("name", DECODERS)
def test_chunks_of_any_size_give_the_same_logits(name: str, sizes: list[int], seed: int) -> None:
    model, length = MODELS[name], sum(sizes)
    ids = torch.randint(0, 61, (1, length), generator=torch.Generator().manual_seed(seed))
    whole = model.logits(model.decode(ids, Step.whole(i32(length))).hidden)
    garbage = torch.full((1, 2 if name == "additive" else 4, length + 3, 16), 9.0)
    states = [{"key": garbage, "value": garbage.clone()} for _ in model.decoder.order]
    start = 0
    for size in sizes:
        step = Step(i32(start), i32(size), i32(start + size)[0])
        hidden, states = model.decode(ids[:, start : start + size], step, states)
        torch.testing.assert_close(
            model.logits(hidden), whole[:, start : start + size], rtol=1e-4, atol=1e-4
        )
        start += size


@torch.no_grad()
@pytest.mark.parametrize(
    "targets",
    [(SignalTarget.QUERY,), (SignalTarget.VALUE,), (SignalTarget.QUERY, SignalTarget.KEY)],
)
def test_a_signal_reaches_its_targets_alone(targets: tuple[SignalTarget, ...]) -> None:
    config = with_signal(PLAIN, *targets)
    model = from_weights(config, random_weights(config))
    assert isinstance(model.decoder, Decoder)
    (mixer, _), x = mixers_of(model.decoder), torch.randn(1, 5, 64)
    encodings = model.decoder.signal(
        x, model.decoder.positions.for_sequence(5)[0], torch.arange(5)[None], 1
    )
    assert torch.equal(encodings.x, x)
    found = split_qkv(mixer.project_qkv(x, encodings.encodings.signal), mixer.config)
    weights = split_qkv(mixer.get_parameter("qkv.weight")[None], mixer.config)
    biases = split_qkv(mixer.get_parameter("qkv.bias")[None, None], mixer.config)
    for target, part, weight, bias in zip(SignalTarget, found, weights, biases, strict=True):
        moved = x + sinusoids(5, 64) if target in targets else x
        torch.testing.assert_close(part, moved @ weight[0] + bias, rtol=1e-4, atol=1e-5)


def mixers_of(decoder: Decoder) -> list[CausalAttention]:
    return [module for module in decoder.modules() if isinstance(module, CausalAttention)]


def test_signals_for_projections_need_projections() -> None:
    for config in (
        msgspec.structs.replace(
            PLAIN,
            decoder=StackConfig(layers=stack().layers, signal_targets=(SignalTarget.KEY,)),
        ),
        with_signal(SSRU, SignalTarget.KEY),
    ):
        with pytest.raises(ValueError, match="signal_targets need a signal, and attention"):
            parameter_shapes(config)


@torch.no_grad()
@pytest.mark.parametrize("size", [None, 24])
def test_concatenated_positions_are_projected(size: int | None) -> None:
    config = concatenated(BERT, size)
    model = from_weights(config, random_weights(config))
    width = 64 + (size or 64)
    weights = model.state_dict()
    assert weights["embedding.projection.weight"].shape == (width, 64)
    ids, segments = torch.tensor([[3, 1, 4], [1, 5, 9]]), torch.tensor([[0, 0, 1], [0, 1, 1]])
    tokens = weights["embedding.tokens.weight"][ids]
    positions = weights["embedding.positions.weight"][:3].expand(2, -1, -1)
    x = torch.cat([tokens, positions], -1) + weights["embedding.segments.weight"][segments]
    expected = model.embedding.projection(model.embedding.norm(x))
    found = model.embedding(model.embedding.look_up(ids), torch.arange(3), segments)
    torch.testing.assert_close(found, expected)


def test_there_must_be_positions_to_concatenate() -> None:
    with pytest.raises(ValueError, match="no positions to concatenate"):
        parameter_shapes(concatenated(PLAIN, None))
