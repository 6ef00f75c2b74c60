"""Relative positions of keys and values: Shaw et al. 2018, and what they do not go with."""

import msgspec
import numpy as np
import pytest
import torch

from model.config import AttentionConfig, ScoreKind
from model.eager import EagerKernels
from model.kernels import PositionEncodings
from model.mixers import BidirectionalAttention
from model.position_config import RelativePositionConfig, RotaryConfig
from tests.architectures import attention, stack

HEADS, KV_HEADS, SIZE, LENGTH = 4, 2, 16, 7


def make_attention(config: AttentionConfig) -> BidirectionalAttention:
    layer = msgspec.structs.replace(stack().layers[0], attention=config)
    return BidirectionalAttention(HEADS * SIZE, layer, EagerKernels())


def equations_3_and_4(
    parts: tuple[np.ndarray, np.ndarray, np.ndarray],
    key_vectors: np.ndarray,
    value_vectors: np.ndarray | None,
    limit: int,
) -> np.ndarray:
    """``[heads, length, size]`` from queries, keys and values, one pair of tokens at a time."""
    queries, keys, values = parts
    context = np.zeros_like(queries)
    for head, query_rows in enumerate(queries):
        source, table = head * KV_HEADS // HEADS, head % len(key_vectors)
        for i, query in enumerate(query_rows):
            distances = [int(np.clip(j - i, -limit, limit)) + limit for j in range(len(query_rows))]
            scores = np.array(
                [
                    query @ (keys[source, j] + key_vectors[table, distance]) / SIZE**0.5
                    for j, distance in enumerate(distances)
                ]
            )
            weights = np.exp(scores) / np.exp(scores).sum()
            for j, distance in enumerate(distances):
                value = values[source, j]
                if value_vectors is not None:
                    value = value + value_vectors[table, distance]
                context[head, i] += weights[j] * value
    return context


def heads_of(x: torch.Tensor) -> np.ndarray:
    """``[1, length, heads * size]`` to ``[heads, length, size]``."""
    return x[0].reshape(x.shape[1], -1, SIZE).transpose(0, 1).double().numpy()


@torch.no_grad()
@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("values", [False, True])
def test_attention_matches_the_equations(limit: int, per_head: bool, values: bool) -> None:
    torch.manual_seed(3)
    relative = RelativePositionConfig(max_distance=limit, per_head=per_head, values=values)
    module = make_attention(msgspec.structs.replace(attention(KV_HEADS), relative=relative))
    for parameter in module.parameters():
        parameter.normal_(std=0.4)
    module.output.weight.copy_(torch.eye(HEADS * SIZE))
    torch.nn.init.zeros_(module.get_parameter("output.bias"))
    x, order = torch.randn(1, LENGTH, HEADS * SIZE), torch.arange(LENGTH)
    positions = PositionEncodings(distances=order - order[None, :, None])
    found = module(x, torch.tensor([LENGTH]), positions)

    parts = module.qkv(x).split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1)
    query, key, value = map(heads_of, parts)
    assert module.relative is not None
    tables = [weight.double().numpy() for weight in module.relative.parameters()]
    assert len(tables) == 1 + values
    assert tables[0].shape == (HEADS if per_head else 1, 2 * limit + 1, SIZE)
    value_table = tables[1] if values else None
    expected = equations_3_and_4((query, key, value), tables[0], value_table, limit)
    np.testing.assert_allclose(heads_of(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score": ScoreKind.COSINE}, "cosine scores with relative positions"),
        ({"score": ScoreKind.ADDITIVE}, "additive scores with relative positions"),
        ({"rotary": RotaryConfig()}, "rotary positions or a soft cap"),
        ({"soft_cap": 2.0}, "rotary positions or a soft cap"),
        ({"num_global_tokens": 1}, "global tokens have no relative positions"),
    ],
)
def test_what_relative_positions_do_not_go_with(changes: dict[str, object], message: str) -> None:
    config = msgspec.structs.replace(
        attention(KV_HEADS), relative=RelativePositionConfig(max_distance=2)
    )
    with pytest.raises(ValueError, match=message):
        make_attention(msgspec.structs.replace(config, **changes))


@pytest.mark.parametrize("changes", [{"rotary": RotaryConfig()}, {"soft_cap": 2.0}])
def test_what_additive_scores_do_not_go_with(changes: dict[str, object]) -> None:
    config = msgspec.structs.replace(attention(KV_HEADS), score=ScoreKind.ADDITIVE)
    with pytest.raises(ValueError, match="no rotary positions and no soft cap"):
        make_attention(msgspec.structs.replace(config, **changes))
