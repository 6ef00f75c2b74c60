"""Matrices that a GGUF file had in few bits: they are recognized by their values, and kept.

Formats: ggml's ``docs/gguf.md`` and ``ggml-quants.c``.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.blocks import Blocks, between_extremes, choose, with_scales
from export.quantized_matmul import Weight

_NEAR = 0.02  # of a step; rounding scale and offset to float16 moves a weight by at most half of it
_SAME = 0.05  # of the values of a block that are all equal
_FINEST = 64  # no grid has a step below this part of its range
_DIVISORS = (1, 2, 3)
_HALF = 16  # values with one scale in Q6_K
_LARGEST = range(16, 33)  # numbers that the largest value of such a half may have
_MIN_SHARE = 0.9  # of blocks or halves that must be on a grid
_NUM_ROWS = 64
_NUM_TRIED = 1024  # blocks; if none of them is near, the matrix never had 4 bits
_PART = 1 << 15  # blocks that are compared at once: their copies stay small


def kept_in_4_bits(matrix: Weight) -> tuple[Blocks, NDArray[np.bool_]]:
    """Blocks of a matrix that had 4 bits, and which of them are kept, ``[rows, blocks]``.

    Those of GGUF's Q4_1 and Q4_0 are exact. Scales of Q4_K are products with more bits than
    float16 has: its numbers are kept, and the weights differ by a hundredth of a step.

    Args:
        matrix: ``[rows, blocks, 32]``
    """
    best, is_kept = _exact_4_bits(matrix)
    rows, columns = np.nonzero(~is_kept)
    some = slice(None, None, -(-len(rows) // _NUM_TRIED) or 1)
    if not _near(matrix[rows[some], columns[some]])[1].any():
        return best, is_kept
    numbers, scales, offsets = best.numbers.copy(), best.scales.copy(), np.array(best.offsets)
    for start in range(0, len(rows), _PART):
        place = rows[start : start + _PART], columns[start : start + _PART]
        near, is_near = _near(matrix[place])
        place = place[0][is_near], place[1][is_near]
        numbers[place] = near.numbers[is_near, 0]
        scales[place] = near.scales[is_near, 0]
        offsets[place] = np.asarray(near.offsets)[is_near, 0]
        is_kept[place] = True
    return Blocks(numbers, scales, offsets), is_kept


def _near(rows: Weight) -> tuple[Blocks, NDArray[np.bool_]]:
    """The nearest blocks on a grid for ``rows [rows, 32]``, and which of them are near."""
    grid = _grid(rows, 15)
    near = with_scales(rows[:, None], grid.steps[:, None], grid.lowest[:, None])
    error = np.abs(near.restored()[:, 0] - rows).max(-1)
    steps = near.scales[:, 0].astype(np.float32)
    # A block of equal values has no step.
    allowed = _NEAR * np.where(steps > 0, steps, _SAME * np.abs(rows).max(-1))
    return near, error <= allowed


class _Grid(NamedTuple):
    """Equally spaced values for each row; ``errors``: the largest distance to one, in steps."""

    lowest: Weight
    steps: Weight
    errors: Weight


def _grid(rows: Weight, most_steps: int) -> _Grid:
    """The grid of at most ``most_steps`` steps on which the values of ``rows [rows, size]`` lie.

    The step is the smallest difference of two values, or a half or a third of it.
    """
    ordered = np.sort(rows, -1)
    lowest, spread = ordered[:, 0], ordered[:, -1] - ordered[:, 0]
    differences = np.diff(ordered, axis=-1)
    # Equal numbers are equal values, but for the rounding of a sum.
    differences[differences <= spread[:, None] / _FINEST] = np.inf
    smallest = differences.min(-1)
    best = np.where(np.isinf(smallest), 0, smallest)
    least = np.full(len(rows), np.inf, np.float32)
    for divisor in _DIVISORS:
        with np.errstate(invalid="ignore", divide="ignore"):
            num_steps = np.round(spread / (smallest / divisor))
            step = spread / num_steps
            places = (rows - lowest[:, None]) / step[:, None]
            error = np.abs(places - np.round(places)).max(-1)
        is_better = (num_steps <= most_steps) & (error < least / 2)
        best, least = np.where(is_better, step, best), np.where(is_better, error, least)
    return _Grid(lowest, best, least)


def _exact_4_bits(matrix: Weight) -> tuple[Blocks, NDArray[np.bool_]]:
    """Blocks as in GGUF's Q4_1 or Q4_0, and which of them are exact."""
    lowest, highest = matrix.min(-1), matrix.max(-1)
    extreme = np.where(highest > -lowest, highest, lowest)
    best = between_extremes(matrix)
    is_exact = (best.restored() == matrix).all(-1)
    if is_exact.all():
        return best, is_exact
    symmetric = with_scales(matrix, (extreme / -8).astype(np.float16), extreme.astype(np.float16))
    is_symmetric = (symmetric.restored() == matrix).all(-1) & ~is_exact
    return choose(is_symmetric, symmetric, best), is_exact | is_symmetric


def had_5_or_6_bits(matrix: Weight) -> bool:
    """Whether ``matrix [rows, blocks, 32]`` is from GGUF's Q5_0, Q5_1, Q5_K or Q6_K.

    Looks at a sample of the rows.
    """
    some = matrix[:: -(-len(matrix) // _NUM_ROWS)]
    blocks = some[np.abs(some).max(-1) > 0]
    if len(blocks) and (_grid(blocks, 31).errors < _NEAR).mean() > _MIN_SHARE:
        return True
    halves = some.reshape(-1, _HALF)
    magnitudes = np.abs(halves).max(-1)
    halves, magnitudes = halves[magnitudes > 0], magnitudes[magnitudes > 0]
    if not len(halves):
        return False
    least = np.full(len(halves), np.inf, np.float32)
    for number in _LARGEST:
        places = halves * (number / magnitudes[:, None])
        least = np.minimum(least, np.abs(places - np.round(places)).max(-1))
    return bool((least < _NEAR).mean() > _MIN_SHARE)
