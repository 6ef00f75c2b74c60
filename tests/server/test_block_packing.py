"""Matrices in blocks are packed as native/block_matmul.h describes, in the smallest format."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.runtime.kernels.block_packing import BlockMatrix, PackedBlocks, pack
from server.runtime.kernels.epilogue import Epilogue
from server.runtime.kernels.weights import WeightFormat
from server.runtime.memory import Array

# A warning tells that a number does not fit into the type it is converted to.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
WIDTH = 16  # outputs of a panel
# Int8Pair, Int4Pair, SmallInt4Pair and Int6Pair.
PAIRS = {
    WeightFormat.INT8_BLOCKS: np.dtype(
        [("scales", "<i2", (WIDTH, 2)), ("numbers", "i1", (2, 8, WIDTH, 4))]
    ),
    WeightFormat.INT4_BLOCKS: np.dtype(
        [
            ("scales", "<i2", (WIDTH, 2)),
            ("zeros", "<i2", (WIDTH, 2)),
            ("words", "u1", (2, 4, WIDTH, 4)),
        ]
    ),
    WeightFormat.SMALL_INT4_BLOCKS: np.dtype(
        [
            ("scales", "u1", (WIDTH, 2)),
            ("zeros", "u1", (WIDTH, 2)),
            ("words", "u1", (2, 4, WIDTH, 4)),
        ]
    ),
    WeightFormat.INT6_BLOCKS: np.dtype(
        [("scales", "<i2", (WIDTH, 2)), ("numbers", "u1", (2, 2, 3, WIDTH, 4))]
    ),
}
SCALE_STEPS = {WeightFormat.SMALL_INT4_BLOCKS: 2**7}  # of a unit, by step of a scale
ZERO_STEPS = {WeightFormat.INT4_BLOCKS: 1 / 256, WeightFormat.SMALL_INT4_BLOCKS: 1 / 16}


def packed(matrix: BlockMatrix) -> PackedBlocks:
    return pack(matrix, Epilogue(onnx.NodeProto(), len(matrix.numbers)))


def unpacked(found: PackedBlocks, num_outputs: int, num_blocks: int) -> Array:
    """The weights ``[outputs, blocks, 32]``; checks that what pads them is zero."""
    form, num_pairs = found.weight_format, -(-num_blocks // 2)
    panel = np.dtype([("units", "<f4", (WIDTH,)), ("pairs", PAIRS[form], (num_pairs,))])
    assert found.panels.dtype == np.uint8
    assert len(found.panels) == -(-num_outputs // WIDTH) * panel.itemsize
    panels = found.panels.view(panel)
    pairs = panels["pairs"]  # [panels, pairs]
    if form == WeightFormat.INT8_BLOCKS:
        numbers = pairs["numbers"].transpose(0, 4, 1, 2, 3, 5)
        zeros = np.zeros(pairs["scales"].shape)
    elif form == WeightFormat.INT6_BLOCKS:
        three = pairs["numbers"]
        first, second, third = np.moveaxis(three, 4, 0) & 3
        fourth = (first * 64 + second * 16 + third * 4)[:, :, :, :, None]
        groups = np.concatenate([three & 252, fourth], 4).view(np.int8)
        numbers = groups.transpose(0, 5, 1, 2, 3, 4, 6)
        zeros = np.zeros(pairs["scales"].shape)
    else:  # of eight inputs, i is in the lower half of byte i, and i + 4 in the upper half
        words = pairs["words"]
        halves = np.stack([words & 15, words >> 4], -2)  # [panels, pairs, 2, 4, 16, 2, 4]
        numbers = halves.transpose(0, 4, 1, 2, 3, 5, 6)
        zeros = pairs["zeros"] * ZERO_STEPS[form]
    numbers = numbers.reshape(-1, 2 * num_pairs, 32).astype(np.float64)
    scales = pairs["scales"] * float(SCALE_STEPS.get(form, 1)) * panels["units"][:, None, :, None]
    by_output = [part.swapaxes(1, 2).reshape(-1, 2 * num_pairs) for part in (scales, zeros)]
    weights: Array = (numbers - by_output[1][..., None]) * by_output[0][..., None]
    assert not weights[num_outputs:].any()
    assert not weights[:, num_blocks:].any()
    return weights[:num_outputs, :num_blocks]


def weights_of(matrix: BlockMatrix) -> Array:
    """As ``MatMulNBits`` defines them: ``[outputs, blocks, 32]``."""
    scales = matrix.scales.astype(np.float64)[..., None]
    if matrix.zeros is None:
        return (matrix.numbers.astype(np.float64) - 128) * scales
    halves = np.stack([matrix.numbers & 15, matrix.numbers >> 4], -1)
    numbers = halves.reshape(*matrix.scales.shape, 32).astype(np.float64)
    weights: Array = (numbers - matrix.zeros[..., None]) * scales
    return weights


def small_matrix(rng: np.random.Generator, num_outputs: int, num_blocks: int) -> BlockMatrix:
    """What scales and zero points of 8 bits hold; some blocks are zeros."""
    shape = num_outputs, num_blocks
    units = 2.0 ** rng.integers(-16, 3, (num_outputs, 1))
    scales = rng.integers(0, 256, shape) * units
    zeros = rng.integers(0, 256, shape) / 16
    numbers = rng.integers(0, 256, (*shape, 16)).astype(np.uint8)
    return BlockMatrix(numbers, scales.astype(np.float16), zeros.astype(np.float32))


def any_matrix(
    rng: np.random.Generator, num_outputs: int, num_blocks: int, bits: int
) -> BlockMatrix:
    shape = num_outputs, num_blocks
    numbers = rng.integers(0, 256, (*shape, 16 if bits == 4 else 32)).astype(np.uint8)
    if bits == 6:
        numbers &= 252
    scales = rng.normal(size=shape).astype(np.float16)
    zeros = rng.uniform(-16, 31, shape).astype(np.float32) if bits == 4 else None
    return BlockMatrix(numbers, scales, zeros)


sizes = st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1)


@given(*sizes)
def test_small_blocks_hold_every_weight(num_outputs: int, num_blocks: int, seed: int) -> None:
    matrix = small_matrix(np.random.default_rng(seed), num_outputs, num_blocks)
    found = packed(matrix)
    assert found.weight_format == WeightFormat.SMALL_INT4_BLOCKS
    np.testing.assert_array_equal(unpacked(found, num_outputs, num_blocks), weights_of(matrix))


OTHERS = {8: WeightFormat.INT8_BLOCKS, 6: WeightFormat.INT6_BLOCKS, 4: WeightFormat.INT4_BLOCKS}


@pytest.mark.parametrize("bits", OTHERS)
@given(*sizes)
def test_other_blocks_hold_scales_in_15_bits(
    bits: int, num_outputs: int, num_blocks: int, seed: int
) -> None:
    """And zero points in 1/256."""
    matrix = any_matrix(np.random.default_rng(seed), num_outputs, num_blocks, bits)
    found = packed(matrix)
    assert found.weight_format == OTHERS[bits]
    error = np.abs(unpacked(found, num_outputs, num_blocks) - weights_of(matrix))
    scales = np.abs(matrix.scales.astype(np.float64))
    largest = 31 if bits == 4 else 128  # of a number minus its zero point
    allowed = (0.5 / 32767 + 1e-7) * scales.max(1, keepdims=True) * largest
    if bits == 4:
        allowed = allowed + (0.5 / 256) * scales
    assert (error <= allowed[..., None]).all()


def with_scale(value: float) -> Callable[[BlockMatrix], BlockMatrix]:
    return lambda matrix: _changed(matrix, "scales", value)


def with_zero(value: float) -> Callable[[BlockMatrix], BlockMatrix]:
    return lambda matrix: _changed(matrix, "zeros", value)


def _changed(matrix: BlockMatrix, part: str, value: float) -> BlockMatrix:
    """With another scale or zero point of the last block of the last output."""
    values = getattr(matrix, part).copy()
    values[-1, -1] = value
    return replace(matrix, **{part: values})


def all_negative(matrix: BlockMatrix) -> BlockMatrix:
    return replace(matrix, scales=-np.maximum(matrix.scales, np.float16(1)))


def vast_zeros(matrix: BlockMatrix) -> BlockMatrix:
    """A block of zeros with a large scale, as the export writes those whose scale is 0."""
    changed = _changed(_changed(matrix, "scales", 1000.5), "zeros", 9)
    changed.numbers[-1, -1] = 0x99
    return changed


@pytest.mark.parametrize(
    ("change", "is_small"),
    [
        (with_scale(255), True),
        (with_scale(1), True),
        (with_scale(0), True),
        (with_scale(254.5), False),
        (with_scale(0.5), False),
        (with_scale(256), False),  # beside one of 255
        (with_scale(-1), False),
        (all_negative, False),
        (with_zero(0), True),
        (with_zero(15.9375), True),
        (with_zero(16), False),
        (with_zero(-0.0625), False),
        (with_zero(1 / 32), False),
        (vast_zeros, True),
    ],
)
def test_scales_and_zero_points_that_8_bits_hold_make_blocks_small(
    change: Callable[[BlockMatrix], BlockMatrix], is_small: bool
) -> None:
    rng = np.random.default_rng(0)
    scales = np.array([[255, 3], [7, 5], [255, 128]], np.float16)
    zeros = np.array([[8, 0], [1 / 16, 15], [2, 3.5]], np.float32)
    numbers = rng.integers(0, 256, (3, 2, 16)).astype(np.uint8)
    matrix = change(BlockMatrix(numbers, scales, zeros))
    found = packed(matrix)
    expected = WeightFormat.SMALL_INT4_BLOCKS if is_small else WeightFormat.INT4_BLOCKS
    assert found.weight_format == expected
    actual, exact = unpacked(found, 3, 2), weights_of(matrix)
    if is_small:
        np.testing.assert_array_equal(actual, exact)
    else:
        np.testing.assert_allclose(actual, exact, atol=0.3)
