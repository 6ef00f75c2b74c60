"""Matrices in blocks of 32: what is kept exactly, and how the rest is rounded."""

import numpy as np
import pytest

from export.block_matmul import quantize
from export.blocks import BLOCK, Blocks, can_have_blocks, rounded_to_8_bits

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


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("offsets", [OFFSETS, SCALES * np.float16(-8)], ids=["Q4_1", "Q4_0"])
def test_keeps_4_bit_blocks_exactly(offsets: np.ndarray, bits: int) -> None:
    weight = as_weight(Blocks(all_steps(4), SCALES, offsets))
    weight[BLOCK:, 1] = weight[BLOCK, 1]  # a block of one value
    kept = quantize(weight, bits)
    assert kept.bits == 4
    np.testing.assert_array_equal(as_weight(kept), weight)


def test_keeps_8_bit_blocks_exactly() -> None:
    weight = as_weight(Blocks(all_steps(8), SCALES))
    kept = quantize(weight, 8)
    assert kept.bits == 8
    np.testing.assert_array_equal(as_weight(kept), weight)


@pytest.mark.parametrize(("bits", "steps"), [(8, 254), (4, 15)])
def test_rounds_other_weights_within_half_a_step(bits: int, steps: int) -> None:
    weight = RNG.normal(size=(96, 20)).astype(np.float32)
    blocks = weight.T.reshape(20, -1, BLOCK)
    magnitudes = np.abs(blocks).max(-1)
    ranges = 2 * magnitudes if bits == 8 else blocks.max(-1) - blocks.min(-1)
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


def test_zeros_stay_zeros() -> None:
    zeros = np.zeros((64, 3), np.float32)
    for bits in (8, 4):
        assert not quantize(zeros, bits).restored().any()
    assert not rounded_to_8_bits(zeros.T.reshape(3, 2, BLOCK)).restored().any()


def test_only_multiples_of_32_inputs_have_blocks() -> None:
    assert [n for n in (31, 32, 33, 64) if can_have_blocks(n)] == [32, 64]
