"""Matrices in blocks of 32 inputs: the format, and rounding to it.

Each block has a float16 scale and, with 4 bits, a float16 offset, as in GGUF's Q8_0 and Q4_1: a
matrix that is already in such blocks is kept exactly. Measurements: docs/decisions/0006-int8.md and
0011-int4.md.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.quantized_matmul import SMALLEST_SCALE, Weight

BLOCK = 32
STEPS = 127  # from 0 to the largest magnitude of a block, with 8 bits
_NUM_FITS = 6  # more fits reduce the error by less than 1 %
_MAX_BYTE = 255
_SPARE = 1.1  # headroom: weights that compensate others' errors grow
_SMALLEST_UNIT = 2.0**-24  # the smallest positive float16
_EVEN = np.full(BLOCK, 1 / BLOCK, np.float32)
Halves = NDArray[np.float16]
Offsets = NDArray[np.float16] | NDArray[np.float32]


class Blocks(NamedTuple):
    """A matrix ``[outputs, blocks, 32]``: weight = number * scale + offset.

    Numbers of 8 bits are stored + 128 and have no offsets. With 4 bits, scale and offset are
    float16 as in GGUF, or 8-bit numbers (:class:`InBytes`).
    """

    numbers: NDArray[np.uint8]
    scales: Halves  # [outputs, blocks]
    offsets: Offsets | None = None

    @property
    def bits(self) -> int:
        return 8 if self.offsets is None else 4

    def zero_points(self) -> Weight:
        """Zero points of 4-bit numbers, ``[outputs, blocks]``; 0 where the scale is 0."""
        scales = self.scales.astype(np.float32)
        zeros = -np.asarray(self.offsets) / np.where(scales == 0, np.inf, scales)
        return zeros.astype(np.float32)

    def restored(self) -> NDArray[np.float32]:
        """The dequantized weights, ``[outputs, blocks, 32]``."""
        scales = self.scales.astype(np.float32)[..., None]
        if self.offsets is None:
            return (self.numbers.astype(np.float32) - 128) * scales
        # The product is exact in float64, so the sum is rounded once.
        exact = self.numbers.astype(np.float64) * scales + self.offsets[..., None]
        return exact.astype(np.float32)


class InBytes(NamedTuple):
    """Scales of 4-bit blocks as 8-bit multiples of a unit, zero points in 8-bit fixed point.

    A zero point is ``-offset / scale``. Blocks take a tenth less memory than with float16:
    SmallInt4Pair in native/block_matmul.h.
    """

    units: NDArray[np.float32]  # [rows], powers of two
    fractions: int = 16  # fractions of zero points per step of the numbers

    @classmethod
    def of(cls, matrix: Weight, fractions: int = 16) -> "InBytes":
        """The form for ``matrix [rows, blocks, 32]``."""
        ranges = np.maximum(matrix.max(-1), 0) - np.minimum(matrix.min(-1), 0)
        largest = np.maximum(ranges.max(1) * (_SPARE / 15 / _MAX_BYTE), _SMALLEST_UNIT)
        return cls(np.exp2(np.frexp(largest)[1]).astype(np.float32), fractions)

    def stored(self, scales: Weight, offsets: Weight) -> tuple[Halves, Offsets]:
        """Scales and offsets ``[rows, blocks]``, rounded to what can be stored."""
        counts = np.clip(np.round(scales / self.units[:, None]), np.sign(scales), _MAX_BYTE)
        exact = (np.maximum(counts, 0) * self.units[:, None]).astype(np.float32)
        steps = exact / self.fractions
        zero_points = np.round(-offsets / np.where(steps == 0, np.inf, steps))
        zero_points = np.clip(zero_points, 0, 16 * self.fractions - 1)
        return exact.astype(np.float16), (-zero_points * steps).astype(np.float32)


def can_have_blocks(num_inputs: int) -> bool:
    """Whether a matrix with this many inputs divides into blocks."""
    return num_inputs % BLOCK == 0


def in_blocks(weight: Weight) -> Weight:
    """``weight [inputs, outputs]`` as ``[outputs, blocks, 32]``."""
    return np.ascontiguousarray(weight.T).reshape(weight.shape[1], -1, BLOCK)


def rounded_to_8_bits(matrix: Weight) -> Blocks:
    """``matrix [rows, blocks, 32]`` as in GGUF's Q8_0, whose matrices are kept exactly."""
    return _symmetric(matrix, STEPS, 1)


def rounded_to_6_bits(matrix: Weight) -> Blocks:
    """``matrix [rows, blocks, 32]`` as 8-bit numbers that are multiples of 4.

    ONNX operators read them as 8 bits; the native kernels store 6 bits: Int6Pair in
    native/block_matmul.h. A matrix that is already in GGUF's Q8_0 is not changed.
    """
    exact = rounded_to_8_bits(matrix)
    if np.array_equal(exact.restored(), matrix):
        return exact
    return _symmetric(matrix, STEPS // 4, 4)


def _symmetric(matrix: Weight, num_steps: int, step: int) -> Blocks:
    """8-bit numbers in steps of ``step``; ``num_steps`` steps reach the largest magnitude."""
    scales = (np.abs(matrix).max(-1) / (num_steps * step)).astype(np.float16)
    numbers = step * np.clip(_steps(matrix, scales * np.float16(step)), -num_steps, num_steps) + 128
    return Blocks(numbers.astype(np.uint8), scales)


def fitted(
    matrix: Weight, best: Blocks, importance: Weight = _EVEN, form: InBytes | None = None
) -> Blocks:
    """The 4-bit blocks ``best``, or others where these have a smaller squared error.

    Alternately fits scale and offset to the numbers by least squares, and rounds the weights again
    (as in Lloyd 1982).

    Args:
        matrix: ``[rows, blocks, 32]``
        importance: weights of the squared errors of the inputs, ``[32]``; their sum is 1.
        form: the form of ``best``; None for float16.
    """
    least = _squared_error(best, matrix, importance)
    found = best
    mean = matrix @ importance
    for _ in range(_NUM_FITS):
        numbers = found.numbers.astype(np.float32)
        middle = numbers @ importance
        centred = numbers - middle[..., None]
        variance = np.maximum(centred**2 @ importance, SMALLEST_SCALE)
        scales = ((centred * matrix) @ importance / variance).astype(np.float32)
        found = with_scales(matrix, scales, mean - scales * middle, form)
        error = _squared_error(found, matrix, importance)
        best, least = choose(error < least, found, best), np.minimum(error, least)
    return best


def _squared_error(blocks: Blocks, matrix: Weight, importance: Weight) -> Weight:
    error: Weight = np.square(blocks.restored() - matrix) @ importance
    return error


def choose(condition: NDArray[np.bool_], one: Blocks, other: Blocks) -> Blocks:
    """``one`` where ``condition [rows, blocks]`` holds, else ``other``; both 4 bits in one form."""
    return Blocks(
        np.where(condition[..., None], one.numbers, other.numbers),
        np.where(condition, one.scales, other.scales),
        np.where(condition, one.offsets, other.offsets),  # type: ignore[arg-type]
    )


def between_extremes(matrix: Weight, form: InBytes | None = None) -> Blocks:
    """4-bit blocks in which 0 is the lowest weight of a block and 15 the highest."""
    lowest, highest = matrix.min(-1), matrix.max(-1)
    if form is not None:  # its zero points are numbers from 0 to 15
        lowest, highest = np.minimum(lowest, 0), np.maximum(highest, 0)
    return with_scales(matrix, (highest - lowest) / np.float32(15), lowest, form)


def with_scales(
    matrix: Weight, scales: Weight, offsets: Weight, form: InBytes | None = None
) -> Blocks:
    """Rounds each weight to the nearest of its block's 16 values.

    Args:
        scales: ``[rows, blocks]``, already rounded to what can be stored; ``offsets`` likewise.
    """
    stored, rounded = _in_halves(scales, offsets) if form is None else form.stored(scales, offsets)
    numbers = np.clip(_steps(matrix - rounded.astype(np.float32)[..., None], stored), 0, 15)
    return Blocks(numbers.astype(np.uint8), stored, rounded)


def _in_halves(scales: Weight, offsets: Weight) -> tuple[Halves, Offsets]:
    return scales.astype(np.float16), offsets.astype(np.float16)


def _steps(matrix: Weight, scales: Halves) -> Weight:
    """Each value divided by its scale, rounded; 0 where the scale is 0."""
    divisors = np.where(scales == 0, np.inf, scales.astype(np.float32))[..., None]
    steps: Weight = np.round(matrix / divisors)
    return steps
