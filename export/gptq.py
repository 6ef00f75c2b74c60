"""GPTQ (Frantar et al. 2023): rounds a matrix so that its products change little.

With ``H = X^T X`` over the inputs ``X`` of calibration text, the squared error of the outputs is
``(w - q) H (w - q)^T``. Columns are rounded in order, and later columns compensate the error of
each: the paper's algorithm 1, with the blocks of the format.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from export.blocks import BLOCK, Blocks, InBytes, between_extremes, choose, fitted
from export.quantized_matmul import Weight

Moments = NDArray[np.float32]  # H of one matrix, [inputs, inputs]
# By the matrices' names without the prefix that tracing adds (export.quantize.TRACED).
SecondMoments = Mapping[str, Moments]
NO_MOMENTS: SecondMoments = MappingProxyType({})

# Relative to the mean of the diagonal. The paper's 0.01 is for 128 rows of 2,048 tokens; with a few
# thousand tokens, minilm lost less with 0.1, and en-pt with 0.03. This value lies between, not
# tuned.
_DAMPING = 0.05


def calibrated(
    matrix: Weight,
    moments: Moments,
    exact: Blocks,
    is_exact: NDArray[np.bool_],
    form: InBytes | None = None,
) -> Blocks:
    """Rounds ``matrix [rows, blocks, 32]`` to 4-bit blocks with a small error of the outputs.

    Args:
        exact: blocks to keep where ``is_exact [rows, blocks]``.
        form: the form of all blocks; None for float16.
    """
    factor = _inverse_factor(moments)
    rest = matrix.reshape(len(matrix), -1).copy()  # weights adjusted to compensate earlier errors
    parts = []
    for index in range(matrix.shape[1]):
        start, stop = index * BLOCK, (index + 1) * BLOCK
        inner = factor[start:stop, start:stop]
        columns, kept = rest[:, start:stop], _one(exact, index)
        part, errors = _rounded(columns, inner, kept, is_exact[:, index], form)
        rest[:, stop:] -= errors @ factor[start:stop, stop:]
        parts.append(part)
    return Blocks(
        np.concatenate([part.numbers for part in parts], 1),
        np.concatenate([part.scales for part in parts], 1),
        np.concatenate([np.asarray(part.offsets) for part in parts], 1),
    )


def _one(blocks: Blocks, index: int) -> Blocks:
    """The 4-bit blocks at ``index`` of each row, ``[rows, 1, 32]``."""
    arrays = (blocks.numbers, blocks.scales, np.asarray(blocks.offsets))
    return Blocks(*(array[:, [index]] for array in arrays))  # type: ignore[arg-type]


def _inverse_factor(moments: Moments) -> Weight:
    """The upper triangular ``U`` with ``U^T U = H^-1`` for the damped ``H``.

    Computed from ``H = R R^T`` with an upper triangular ``R``: the Cholesky factor of ``H`` with
    rows and columns in reverse order.
    """
    damped = moments.astype(np.float64)
    mean = np.trace(damped) / len(damped)
    damped[np.diag_indices_from(damped)] += _DAMPING * mean if mean > 0 else 1
    reverse = np.linalg.inv(np.linalg.cholesky(damped[::-1, ::-1]))
    # The scale of H does not affect the error; without it, float32 suffices.
    factor: Weight = (reverse / reverse.diagonal().max())[::-1, ::-1].astype(np.float32)
    return factor


def _rounded(
    columns: Weight,
    factor: Weight,
    kept: Blocks,
    is_kept: NDArray[np.bool_],
    form: InBytes | None,
) -> tuple[Blocks, Weight]:
    """Rounds one block of each row, ``columns [rows, 32]``; also returns the errors to spread.

    Scale and offset fit the weights as they are when the first column is reached. A column whose
    error later columns cannot compensate has a larger weight.

    Args:
        factor: ``[32, 32]``, the part for these inputs.
        kept: ``[rows, 1, 32]``, blocks to keep where ``is_kept [rows]``.
    """
    importance = factor.diagonal() ** -2
    matrix = columns[:, None]
    best = between_extremes(matrix, form)
    block = fitted(matrix, best, importance / importance.sum(), form)
    block = choose(is_kept[:, None], kept, block)
    scales = block.scales[:, 0].astype(np.float32)
    offsets = np.asarray(block.offsets)[:, 0].astype(np.float32)
    steps = np.where(scales == 0, np.inf, scales)
    rest, numbers, errors = columns.copy(), block.numbers.copy(), np.zeros_like(columns)
    for column in range(BLOCK):
        nearest = np.clip(np.round((rest[:, column] - offsets) / steps), 0, 15)
        numbers[~is_kept, 0, column] = nearest[~is_kept]
        restored = numbers[:, 0, column] * scales + offsets
        errors[:, column] = (rest[:, column] - restored) / factor[column, column]
        rest[:, column + 1 :] -= errors[:, column, None] * factor[column, column + 1 :]
    return Blocks(numbers, block.scales, block.offsets), errors
