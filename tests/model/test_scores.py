"""Attention scores against their formulas in numpy, in every attention of a model."""

import msgspec
import numpy as np
import pytest
import torch

from model.config import AttentionConfig, LayerConfig, ModelConfig, ScoreKind, StackConfig
from model.eager import EagerKernels
from model.kernels import KeyValue, PositionEncodings, Step
from model.mixers import BidirectionalAttention, CrossAttention
from model.sublayers import in_order
from tests.architectures import VASWANI, attention, random_weights, stack

HEADS, KV_HEADS, SIZE = 4, 2, 16


def with_score(config: ModelConfig, score: ScoreKind) -> ModelConfig:
    """``config`` with ``score`` in every attention."""

    def changed(layers: StackConfig | None) -> StackConfig | None:
        if layers is None:
            return None
        return msgspec.structs.replace(layers, layers=tuple(map(layer, layers.layers)))

    def layer(old: LayerConfig) -> LayerConfig:
        fields: dict[str, AttentionConfig] = {
            name: msgspec.structs.replace(getattr(old, name), score=score)
            for name in ("attention", "cross_attention")
            if getattr(old, name) is not None
        }
        return msgspec.structs.replace(old, **fields)

    return msgspec.structs.replace(
        config, encoder=changed(config.encoder), decoder=changed(config.decoder)
    )


def formula(
    score: ScoreKind, query: np.ndarray, key: np.ndarray, weights: tuple[np.ndarray, ...]
) -> float:
    """The score of one query and one key, each ``[size]``; ``weights`` are those of the head."""
    if score == ScoreKind.BILINEAR:
        (matrix,) = weights
        return float(query @ matrix @ key)
    if score == ScoreKind.ADDITIVE:
        of_query, of_key, vector = weights
        return float(vector @ np.tanh(query @ of_query + key @ of_key))
    if score == ScoreKind.COSINE:
        return float(query @ key / np.linalg.norm(query) / np.linalg.norm(key))
    return float(query @ key / (SIZE**0.5 if score == ScoreKind.SCALED_DOT else 1))


def expected_context(
    score: ScoreKind,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    weights: list[np.ndarray],
) -> np.ndarray:
    """``[heads, length, size]`` attention, one query at a time."""
    context = np.zeros_like(queries)
    for head in range(HEADS):
        source = head * KV_HEADS // HEADS
        own = tuple(weight[source if len(weight) == KV_HEADS else head] for weight in weights)
        for index, query in enumerate(queries[head]):
            scores = np.array([formula(score, query, key, own) for key in keys[source]])
            exponentials = np.exp(scores - scores.max())
            context[head, index] = exponentials / exponentials.sum() @ values[source]
    return context


def heads_of(x: torch.Tensor) -> np.ndarray:
    """``[1, length, heads * size]`` to ``[heads, length, size]``."""
    return x[0].reshape(x.shape[1], -1, SIZE).transpose(0, 1).double().numpy()


@torch.no_grad()
@pytest.mark.parametrize("score", list(ScoreKind))
def test_scores_match_the_formula(score: ScoreKind) -> None:
    torch.manual_seed(5)
    config = msgspec.structs.replace(attention(KV_HEADS), score=score)
    layer = msgspec.structs.replace(stack().layers[0], attention=config)
    own = BidirectionalAttention(HEADS * SIZE, layer, EagerKernels())
    cross = CrossAttention(HEADS * SIZE, config, EagerKernels())
    for module in (own, cross):
        for parameter in module.parameters():
            parameter.normal_(std=0.2)
        module.output.weight.copy_(torch.eye(HEADS * SIZE))
        torch.nn.init.zeros_(module.get_parameter("output.bias"))
    x, source = torch.randn(1, 5, HEADS * SIZE), torch.randn(1, 7, HEADS * SIZE)

    query, key, value = own.qkv(x).split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1)
    found = own(x, torch.tensor([5]), PositionEncodings())
    check(score, found, (query, key, value), list(own.score.parameters()))

    query, (key, value) = cross.query(x), cross.key_value(source).chunk(2, -1)
    step = Step.whole(torch.tensor([5]), torch.tensor([7]))
    found = cross(x, step, KeyValue(*cross.project_source(source))).output
    check(score, found, (query, key, value), list(cross.score.parameters()))


NUM_WEIGHTS = {ScoreKind.BILINEAR: 1, ScoreKind.ADDITIVE: 3}


def check(
    score: ScoreKind,
    found: torch.Tensor,
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    parameters: list[torch.Tensor],
) -> None:
    weights = [parameter.double().numpy() for parameter in parameters]
    assert len(weights) == NUM_WEIGHTS.get(score, 0)
    query, key, value = map(heads_of, parts)
    expected = expected_context(score, query, key, value, weights)
    np.testing.assert_allclose(heads_of(found), expected, rtol=1e-4, atol=1e-5)


def test_sublayers_are_in_the_order_of_the_letters() -> None:
    assert VASWANI.decoder is not None
    layers = in_order("sssfsff", VASWANI.decoder.layers[0])
    assert ["s" if layer.feed_forward is None else "f" for layer in layers] == list("sssfsff")
    for layer in layers:
        assert (layer.mixer is None) == (layer.feed_forward is not None)
        assert (layer.mixer is None) == (layer.cross_attention is None)
    config = msgspec.structs.replace(
        VASWANI, decoder=StackConfig(layers=in_order("sf", VASWANI.decoder.layers[0]))
    )
    assert not any(
        "layers.0.feed_forward" in name for name in random_weights(config) if "dec" in name
    )


@pytest.mark.parametrize("order", ["", "s", "ff", "sfx", "SF"])
def test_bad_orders(order: str) -> None:
    with pytest.raises(ValueError, match="letters s and f"):
        in_order(order, stack().layers[0])
