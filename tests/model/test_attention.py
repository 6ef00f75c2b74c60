"""The eager attentions against explicit formulas and PyTorch's own attention."""

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from model.config import AttentionConfig
from model.eager import EagerKernels, apply_rotary, scaled_dot_product_attention
from model.kernels import KeyValue, PositionEncodings, Step
from model.position_config import RotaryConfig
from model.positions import rotary_tables, sinusoids

KERNELS = EagerKernels()
NO_POSITIONS = PositionEncodings()
CONFIG = AttentionConfig(
    num_heads=4, num_kv_heads=2, head_size=8, input_bias=False, output_bias=False
)
PACKED = (CONFIG.num_heads + 2 * CONFIG.num_kv_heads) * CONFIG.head_size


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_attention_matches_pytorch() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 8, generator=generator)
    key, value = torch.randn(2, 2, 2, 7, 8, generator=generator)
    mask = torch.rand(2, 1, 5, 7, generator=generator) < 0.7
    mask[..., 0] = True
    expected = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=True
    )
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value, mask), expected.transpose(1, 2).flatten(2)
    )


def test_rotary_keeps_the_norm_and_depends_on_distance_only() -> None:
    tables = rotary_tables(64, 8, RotaryConfig())
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))

    def score(query_position: int, key_position: int) -> float:
        positions = (torch.tensor([[query_position]]), torch.tensor([[key_position]]))
        rotated = [apply_rotary(x, tables, p) for x, p in zip((query, key), positions, strict=True)]
        assert rotated[0].norm().item() == pytest.approx(query.norm().item(), rel=1e-5)
        return float((rotated[0] * rotated[1]).sum())

    assert score(9, 4) == pytest.approx(score(40, 35), abs=1e-5)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)


def test_sinusoids_match_the_formula() -> None:
    table = sinusoids(10, 8)
    for position in range(10):
        for i in range(4):
            angle = position * math.exp(-i * math.log(10_000) / 3)
            assert table[position, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 4 + i].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_causal_attention_ignores_later_tokens() -> None:
    qkv = torch.randn(1, 6, PACKED, generator=torch.Generator().manual_seed(0))
    step = Step.whole(i32(6))
    before = KERNELS.causal(qkv, CONFIG, NO_POSITIONS, None, step).context
    qkv[:, 4:] += 1
    after = KERNELS.causal(qkv, CONFIG, NO_POSITIONS, None, step).context
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4:], before[:, 4:])


def test_attention_ignores_padding() -> None:
    qkv = torch.randn(2, 6, PACKED, generator=torch.Generator().manual_seed(0))
    lengths = i32(6, 3)
    before = KERNELS.bidirectional(qkv, CONFIG, NO_POSITIONS, lengths)
    qkv[1, 3:] = 99.0
    after = KERNELS.bidirectional(qkv, CONFIG, NO_POSITIONS, lengths)
    torch.testing.assert_close(after[1, :3], before[1, :3])
    alone = KERNELS.bidirectional(qkv[1:, :3], CONFIG, NO_POSITIONS, i32(3))
    torch.testing.assert_close(after[1:, :3], alone)


@settings(max_examples=30)
@given(window=st.integers(1, 8), length=st.integers(1, 8), position=st.integers(0, 7))
def test_bidirectional_window_limits_attention(window: int, length: int, position: int) -> None:
    """Changing the value of one token changes exactly the outputs within the window."""
    position %= length
    config = msgspec.structs.replace(CONFIG, window=window)
    qkv = torch.randn(1, length, PACKED, generator=torch.Generator().manual_seed(0))
    before = KERNELS.bidirectional(qkv, config, NO_POSITIONS, i32(length))
    qkv[:, position, -CONFIG.num_kv_heads * CONFIG.head_size :] += 1  # only the values
    after = KERNELS.bidirectional(qkv, config, NO_POSITIONS, i32(length))
    changed = [bool((after - before)[0, i].abs().max() > 1e-3) for i in range(length)]
    assert changed == [abs(i - position) < window for i in range(length)]


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    cuts=st.lists(st.floats(0, 0.99), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
def test_cached_attention_matches_uncached(
    lengths: list[int], cuts: list[float], seed: int
) -> None:
    """Ragged rows, split anywhere, over a cache with garbage beyond the valid prefix."""
    generator = torch.Generator().manual_seed(seed)
    batch, longest = len(lengths), max(lengths)
    qkv = torch.randn(batch, longest, PACKED, generator=generator)
    positions = PositionEncodings(rotary_tables(32, CONFIG.head_size, RotaryConfig()))
    whole = KERNELS.causal(qkv, CONFIG, positions, None, Step.whole(i32(*lengths))).context

    first = [int(cut * length) for cut, length in zip(cuts, lengths, strict=False)]
    garbage = torch.full((batch, CONFIG.num_kv_heads, 12, CONFIG.head_size), 1e4)
    cache = KeyValue(garbage, garbage.clone())
    cached = [0] * batch
    for new in (first, [n - f for n, f in zip(lengths, first, strict=True)]):
        size = max(1, *new)
        rows = torch.zeros(batch, size, PACKED)
        for row, (start, count) in enumerate(zip(cached, new, strict=True)):
            rows[row, :count] = qkv[row, start : start + count]
        total = i32(*np.add(cached, new).tolist())
        step = Step(i32(*cached), i32(*new), total.amax())
        context, cache = KERNELS.causal(rows, CONFIG, positions, cache, step)
        for row, (start, count) in enumerate(zip(cached, new, strict=True)):
            torch.testing.assert_close(
                context[row, :count], whole[row, start : start + count], rtol=1e-4, atol=1e-5
            )
        cached = total.tolist()
