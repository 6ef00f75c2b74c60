"""Calibrated rounding: smaller errors of the outputs, in the same format."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from export.block_matmul import quantize
from export.blocks import BLOCK, Blocks
from export.quantized_matmul import Weight

NUM_INPUTS, NUM_OUTPUTS, RANK = 96, 40, 24


def correlated_inputs(rng: np.random.Generator, num_tokens: int) -> Weight:
    """``[tokens, inputs]`` that mostly lie in a space of ``RANK`` dimensions."""
    directions = np.random.default_rng(7).normal(size=(RANK, NUM_INPUTS))
    x = rng.normal(size=(num_tokens, RANK)) @ directions
    noise = rng.normal(size=(num_tokens, NUM_INPUTS))
    return (x + 0.3 * noise).astype(np.float32)


def random_weight(rng: np.random.Generator) -> Weight:
    return rng.normal(size=(NUM_INPUTS, NUM_OUTPUTS)).astype(np.float32)


def as_weight(blocks: Blocks) -> Weight:
    """``[inputs, outputs]``"""
    return blocks.restored().reshape(len(blocks.scales), -1).T


def output_error(x: Weight, weight: Weight, blocks: Blocks) -> float:
    return float(np.linalg.norm(x @ (as_weight(blocks) - weight)) / np.linalg.norm(x @ weight))


def exact_blocks(rng: np.random.Generator) -> Blocks:
    shape = (NUM_OUTPUTS, NUM_INPUTS // BLOCK)
    numbers = rng.integers(0, 16, (*shape, BLOCK)).astype(np.uint8)
    numbers[..., 0], numbers[..., 1] = 0, 15
    scales, offsets = rng.uniform(0.01, 0.1, shape), rng.normal(size=shape)
    return Blocks(numbers, scales.astype(np.float16), offsets.astype(np.float16))


@pytest.mark.parametrize("seed", range(8))
def test_outputs_on_other_inputs_of_the_same_kind_err_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight, x = random_weight(rng), correlated_inputs(rng, 2000)
    calibrated, plain = quantize(weight, 4, x.T @ x), quantize(weight, 4)
    others = correlated_inputs(rng, 500)
    error = output_error(others, weight, calibrated)
    assert error < 0.7 * output_error(others, weight, plain)
    # The weights' own error grows: the gain is not a finer format.
    assert np.linalg.norm(as_weight(calibrated) - weight) > np.linalg.norm(
        as_weight(plain) - weight
    )


def test_inputs_that_vary_alone_leave_the_plain_rounding() -> None:
    rng = np.random.default_rng(0)
    weight = random_weight(rng)
    calibrated, plain = (
        quantize(weight, 4, np.eye(NUM_INPUTS, dtype=np.float32)),
        quantize(weight, 4),
    )
    np.testing.assert_array_equal(as_weight(calibrated), as_weight(plain))


def test_exact_blocks_stay_exact_among_others() -> None:
    rng = np.random.default_rng(1)
    weight, x = as_weight(exact_blocks(rng)).copy(), correlated_inputs(rng, 500)
    weight[:BLOCK, 3:9] = rng.normal(size=(BLOCK, 6))  # their errors reach the blocks that follow
    weight[BLOCK : 2 * BLOCK, 20] = 0.25  # a block of one value
    found = as_weight(quantize(weight, 4, x.T @ x))
    is_rounded = np.zeros(weight.shape, bool)
    is_rounded[:BLOCK, 3:9] = True
    np.testing.assert_array_equal(found[~is_rounded], weight[~is_rounded])
    assert (found[is_rounded] != weight[is_rounded]).mean() > 0.9


def few_tokens(x: Weight) -> Weight:
    return x[:5]


def zero_columns(x: Weight) -> Weight:
    return np.where(np.arange(NUM_INPUTS) % 3 == 0, np.float32(0), x)


def nothing(x: Weight) -> Weight:
    return np.zeros_like(x)


@pytest.mark.parametrize("change", [few_tokens, zero_columns, nothing])
def test_singular_moments_give_finite_weights_and_small_errors(
    change: Callable[[Weight], Weight],
) -> None:
    rng = np.random.default_rng(2)
    weight, x = random_weight(rng), change(correlated_inputs(rng, 300))
    blocks = quantize(weight, 4, x.T @ x)
    found = as_weight(blocks)
    assert np.isfinite(found).all()
    assert np.abs(found - weight).max() < 2 * np.abs(weight).max()
    assert np.linalg.norm(x @ (found - weight)) <= np.linalg.norm(
        x @ (as_weight(quantize(weight, 4)) - weight)
    )


def test_numbers_have_4_bits_and_every_scale_of_inputs_gives_the_same() -> None:
    rng = np.random.default_rng(3)
    weight, x = random_weight(rng), correlated_inputs(rng, 400)
    moments: NDArray[np.float32] = x.T @ x
    blocks, scaled = quantize(weight, 4, moments), quantize(weight, 4, moments * np.float32(2**-30))
    assert blocks.bits == 4
    assert blocks.numbers.max() == 15
    assert (blocks.scales.dtype.name, blocks.numbers.dtype.name) == ("float16", "uint8")
    np.testing.assert_array_equal(as_weight(blocks), as_weight(scaled))
