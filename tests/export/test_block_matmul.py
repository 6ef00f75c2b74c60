"""Matrices in blocks of 32: what is kept exactly, and how the rest is rounded."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from export.block_matmul import quantize, quantize_table
from export.blocks import (
    BLOCK,
    Blocks,
    InBytes,
    between_extremes,
    can_have_blocks,
    fitted,
    in_blocks,
    rounded_to_8_bits,
)

RNG = np.random.default_rng(0)
SCALES = RNG.uniform(0.01, 0.1, (6, 3)).astype(np.float16)
OFFSETS = RNG.normal(size=(6, 3)).astype(np.float16)


def all_steps(bits: int) -> np.ndarray:
    """Numbers ``[6, 3, 32]`` that reach both ends of their range, as a GGUF's do."""
    numbers = RNG.integers(0, 2**bits, (6, 3, BLOCK)).astype(np.uint8)
    numbers[..., 0], numbers[..., 1] = (0, 15) if bits == 4 else (1, 255)
    return np.maximum(numbers, 1) if bits == 8 else numbers


def as_weight(blocks: Blocks) -> np.ndarray:
    """``[inputs, outputs]``"""
    return blocks.restored().reshape(len(blocks.scales), -1).T


@pytest.mark.parametrize("bits", [8, 6, 4])
@pytest.mark.parametrize("offsets", [OFFSETS, SCALES * np.float16(-8)], ids=["Q4_1", "Q4_0"])
def test_keeps_4_bit_blocks_exactly(offsets: np.ndarray, bits: int) -> None:
    weight = as_weight(Blocks(all_steps(4), SCALES, offsets))
    weight[BLOCK:, 1] = weight[BLOCK, 1]  # a block of one value
    kept = quantize(weight, bits)
    assert kept.bits == 4
    np.testing.assert_array_equal(as_weight(kept), weight)


def of_q4_k(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights ``[inputs, outputs]`` with products of two numbers as scales; and the scales."""
    shape = numbers.shape[:2]
    steps = np.float32(np.float16(0.00123)) * RNG.integers(1, 64, shape).astype(np.float32)
    offset = np.float32(np.float16(0.0101))
    lowest = offset * np.round(RNG.uniform(6, 9, shape).astype(np.float32) * steps / offset)
    weight = steps[..., None] * numbers.astype(np.float32) - lowest[..., None]
    return weight.reshape(len(weight), -1).T.copy(), steps


@pytest.mark.parametrize("bits", [8, 6, 4])
@pytest.mark.parametrize("some", [range(16), range(3, 12), (0, 2, 5, 15), (1, 4, 10)])
def test_keeps_the_numbers_of_q4_k(some: Sequence[int], bits: int) -> None:
    """Also of blocks without the extremes, or without numbers beside each other."""
    numbers = RNG.choice(np.array(some), (6, 3, BLOCK))
    weight, steps = of_q4_k(numbers)
    kept = quantize(weight, bits)
    assert kept.bits == 4
    error = np.abs(as_weight(kept) - weight).T.reshape(numbers.shape).max(-1)
    assert (error <= 0.02 * steps).all()
    assert (np.diff(np.sort(kept.numbers, -1), axis=-1).max(-1) < 16).all()


def test_keeps_blocks_of_q4_k_with_one_value() -> None:
    weight, _ = of_q4_k(RNG.integers(0, 16, (6, 3, BLOCK)))
    weight[BLOCK : 2 * BLOCK, 4] = np.float32(np.float16(0.0371)) * 61
    kept = quantize(weight, 4)
    assert kept.bits == 4
    assert np.abs(as_weight(kept) - weight).max() < 1e-3 * np.abs(weight).max()


def of_q5_0() -> np.ndarray:
    numbers = RNG.integers(-16, 16, (6, 3, BLOCK)).astype(np.float32)
    return (SCALES[..., None] * numbers).astype(np.float32).reshape(6, -1).T.copy()


def of_q5_k() -> np.ndarray:
    return of_q4_k(RNG.integers(0, 32, (6, 3, BLOCK)))[0]


def of_q6_k() -> np.ndarray:
    steps = np.float32(np.float16(0.00123)) * RNG.integers(-128, 128, (6, 6)).astype(np.float32)
    numbers = np.clip(np.round(RNG.normal(0, 14, (6, 6, BLOCK // 2))), -32, 31)
    return (steps[..., None] * numbers).astype(np.float32).reshape(6, -1).T.copy()


@pytest.mark.parametrize("make", [of_q5_0, of_q5_k, of_q6_k])
def test_weights_of_more_than_4_bits_get_at_least_6(make: Callable[[], np.ndarray]) -> None:
    weight = make()
    for bits in (4, 6):
        rounded = quantize(weight, bits)
        assert rounded.bits == 8
        assert ((rounded.numbers.astype(int) - 128) % 4 == 0).all()
    exact = rounded_to_8_bits(in_blocks(weight))
    np.testing.assert_array_equal(quantize(weight, 8).numbers, exact.numbers)
    assert quantize(RNG.normal(size=weight.shape).astype(np.float32), 4).bits == 4


@pytest.mark.parametrize("bits", [8, 6])
def test_keeps_8_bit_blocks_exactly(bits: int) -> None:
    weight = as_weight(Blocks(all_steps(8), SCALES))
    kept = quantize(weight, bits)
    assert kept.bits == 8
    np.testing.assert_array_equal(as_weight(kept), weight)


@pytest.mark.parametrize(("bits", "steps"), [(8, 254), (6, 62), (4, 15)])
def test_rounds_other_weights_within_half_a_step(bits: int, steps: int) -> None:
    weight = RNG.normal(size=(96, 20)).astype(np.float32)
    blocks = weight.T.reshape(20, -1, BLOCK)
    magnitudes = np.abs(blocks).max(-1)
    ranges = blocks.max(-1) - blocks.min(-1) if bits == 4 else 2 * magnitudes
    error = np.abs(quantize(weight, bits).restored() - blocks)
    inside = np.abs(blocks) < 0.8 * magnitudes[..., None]  # a fitted range may cut extremes
    assert (error <= 0.502 * (ranges / steps)[..., None])[inside].mean() > 0.99


def test_fitting_lowers_the_squared_error() -> None:
    weight = RNG.standard_t(4, size=(320, 50)).astype(np.float32)
    blocks = weight.T.reshape(50, -1, BLOCK)
    lowest = blocks.min(-1, keepdims=True)
    scale = (blocks.max(-1, keepdims=True) - lowest) / 15
    between = np.round((blocks - lowest) / scale) * scale + lowest
    fitted = quantize(weight, 4).restored()
    assert ((fitted - blocks) ** 2).sum() < 0.9 * ((between - blocks) ** 2).sum()


def zero_points(blocks: Blocks) -> np.ndarray:
    """Returns the zero points of the blocks that have a scale."""
    assert blocks.offsets is not None
    scales = blocks.scales.astype(np.float64)
    return -blocks.offsets[scales > 0] / scales[scales > 0]


@pytest.mark.parametrize("is_table", [False, True])
def test_scales_and_zero_points_fit_into_8_bits(is_table: bool) -> None:
    weight = RNG.standard_t(3, size=(320, 50)).astype(np.float32)
    weight[:, 1:] *= 10.0 ** RNG.integers(-3, 3, 49)  # rows of very different sizes
    weight[:BLOCK, 2] = 0
    weight[BLOCK : 2 * BLOCK, 3] *= 1e-3  # one small block of a row
    weight[:BLOCK, 4] = np.abs(weight[:BLOCK, 4]) + 1  # far from zero
    blocks = quantize_table(weight.T.copy(), 4) if is_table else quantize(weight, 4)
    units = np.exp2(np.floor(np.log2(blocks.scales.max(1).astype(np.float64) / 255 * 1.0001)))
    counts = blocks.scales / units[:, None]
    is_double = counts.max(1) > 255
    counts[is_double] /= 2
    np.testing.assert_array_equal(counts, np.rint(counts))
    assert counts.max() <= 255
    sixteenths = zero_points(blocks) * 16
    np.testing.assert_array_equal(sixteenths % (16 if is_table else 1), 0)
    assert 0 <= sixteenths.min() <= sixteenths.max() <= 255
    assert blocks.numbers.max() == 15


def test_8_bits_for_scales_lose_little() -> None:
    matrix = np.random.default_rng(0).normal(size=(500, 10, BLOCK)).astype(np.float32)
    form = InBytes.of(matrix)
    errors = [
        np.linalg.norm(fitted(matrix, between_extremes(matrix, f), form=f).restored() - matrix)
        for f in (form, None)
    ]
    assert errors[1] < errors[0] < 1.01 * errors[1]


@pytest.mark.parametrize(("num_exact", "dtype"), [(3, np.float16), (2, np.float32)])
def test_blocks_keep_float16_scales_if_most_are_exact_so(num_exact: int, dtype: type) -> None:
    """In 3 of 6 outputs, or in 2; in another, half of the blocks are zeros."""
    weight = RNG.normal(size=(96, 6)).astype(np.float32)
    exact = as_weight(Blocks(all_steps(4), SCALES, OFFSETS))
    weight[:, :num_exact] = exact[:, :num_exact]
    weight[BLOCK : 2 * BLOCK, 5] = 0
    blocks = quantize(weight, 4)
    assert blocks.offsets is not None
    assert blocks.offsets.dtype == dtype
    kept = as_weight(blocks)
    assert np.array_equal(kept[:, :num_exact], exact[:, :num_exact]) == (num_exact == 3)
    assert not kept[BLOCK : 2 * BLOCK, 5].any()


def test_6_bits_are_multiples_of_4() -> None:
    weight = RNG.normal(size=(96, 20)).astype(np.float32)
    for blocks in (quantize(weight, 6), quantize_table(weight.T.copy(), 6)):
        steps = (blocks.numbers.astype(int) - 128) / 4
        np.testing.assert_array_equal(steps, np.rint(steps))
        assert (np.abs(steps).max(-1) == 31).all()


@pytest.mark.parametrize(("offset", "bits"), [(-8.0, 4), (-7.5, 8)], ids=["Q4_0", "Q4_1"])
def test_tables_that_4_bits_hold_are_kept_or_get_8_bits(offset: float, bits: int) -> None:
    """``GatherBlockQuantized`` has no zero points with fractions."""
    table = Blocks(all_steps(4), SCALES, SCALES * np.float16(offset)).restored().reshape(6, -1)
    blocks = quantize_table(table, 4)
    assert blocks.bits == bits
    error = np.abs(blocks.restored().reshape(6, -1) - table).max()
    assert error <= (0 if bits == 4 else 0.01 * np.abs(table).max())


def test_tables_of_8_bits_are_as_in_gguf() -> None:
    stored = Blocks(all_steps(8), SCALES)
    table = stored.restored().reshape(6, -1)
    np.testing.assert_array_equal(quantize_table(table, 8).restored(), stored.restored())


def test_zeros_stay_zeros() -> None:
    zeros = np.zeros((64, 3), np.float32)
    for bits in (8, 6, 4):
        assert not quantize(zeros, bits).restored().any()
        assert not quantize_table(zeros.T.copy(), bits).restored().any()


def test_only_multiples_of_32_inputs_have_blocks() -> None:
    assert [n for n in (31, 32, 33, 64) if can_have_blocks(n)] == [32, 64]
