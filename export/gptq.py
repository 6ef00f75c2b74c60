"""GPTQ (Frantar et al. 2023): rounds a matrix so that its products change little.

With ``H = X^T X`` over the inputs ``X`` of calibration text, the squared error of the outputs is
``(w - q) H (w - q)^T``. Columns are rounded in order, and the error of each is made up for by the
columns that follow: the paper's algorithm 1, whose blocks are here the format's own.
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

# Of the mean diagonal. The paper's 0.01 is for 128 rows of 2,048 tokens; with a few thousand,
# minilm lost less at 0.1, and en-pt at 0.03. This lies between; it was not tuned further.
_DAMPING = 0.05


def calibrated(
    matrix: Weight,
    moments: Moments,
    exact: Blocks,
    is_exact: NDArray[np.bool_],
    form: InBytes | None = None,
) -> Blocks:
    """``matrix [rows, blocks, 32]`` in 4-bit blocks with a small error of its outputs.

    Args:
        exact: blocks that are kept where ``is_exact [rows, blocks]``.
        form: of all blocks; None for float16.
    """
    factor = _inverse_factor(moments)
    rest = matrix.reshape(len(matrix), -1).copy()  # weights that make up for earlier errors
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
    """One 4-bit block of each row, ``[rows, 1, 32]``."""
    arrays = (blocks.numbers, blocks.scales, np.asarray(blocks.offsets))
    return Blocks(*(array[:, [index]] for array in arrays))  # type: ignore[arg-type]


def _inverse_factor(moments: Moments) -> Weight:
    """The upper triangular ``U`` with ``U^T U = H^-1``, of the damped ``H``.

    From ``H = R R^T`` with an upper triangular ``R``: the Cholesky factor of ``H`` with rows and
    columns in reverse order.
    """
    damped = moments.astype(np.float64)
    mean = np.trace(damped) / len(damped)
    damped[np.diag_indices_from(damped)] += _DAMPING * mean if mean > 0 else 1
    reverse = np.linalg.inv(np.linalg.cholesky(damped[::-1, ::-1]))
    # The error does not depend on the scale of H: without it, float32 suffices.
    factor: Weight = (reverse / reverse.diagonal().max())[::-1, ::-1].astype(np.float32)
    return factor


def _rounded(
    columns: Weight,
    factor: Weight,
    kept: Blocks,
    is_kept: NDArray[np.bool_],
    form: InBytes | None,
) -> tuple[Blocks, Weight]:
    """One block of each row, ``columns [rows, 32]``, and the errors to spread, ``[rows, 32]``.

    Scale and offset fit the weights as they are when the first column is reached. A column whose
    error the others cannot make up for counts more.

    Args:
        factor: ``[32, 32]``, of these inputs.
        kept: ``[rows, 1, 32]``, the blocks where ``is_kept [rows]``.
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
