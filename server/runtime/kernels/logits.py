"""Computes log-sum-exp and the largest values of rows of logits, in one pass: native/logits.h.

Each function returns None if this machine cannot run it, or the rows are not contiguous float32.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from server.runtime.kernels.library import (
    Kernels,
    NativeFunction,
    load_function,
    supported_kernels,
)

Logits = npt.NDArray[np.float32]

# The time of a search grows with the number of values to find; beyond this, NumPy is faster.
_MAX_COUNT = 256
_VALUES_PER_MILLISECOND = 2_000_000


class TopTokenRows(NamedTuple):
    """Log-sum-exp ``[rows]`` and top tokens ``[rows, count]`` of rows of logits.

    A missing index is -1, with log-probability -inf.
    """

    log_sum_exps: npt.NDArray[np.float64]
    indices: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]


def log_sum_exp(row: Logits) -> float | None:
    """Computes ``log(sum(exp(row)))`` of ``row [n]``; NaN if a value is NaN."""
    if _LOG_SUM_EXP is None or not _are_supported(row):
        return None
    return float(_LOG_SUM_EXP.holding_gil(row.ctypes.data, len(row)))


def top_indices(row: Logits, count: int) -> npt.NDArray[np.intp] | None:
    """Finds the indices of the ``count`` largest of ``row [n]``, largest first, lower ties first.

    There are fewer if the row has fewer numbers; NaN is ignored. None if ``count`` is over 256.
    """
    if _TOP_INDICES is None or count > _MAX_COUNT or not _are_supported(row):
        return None
    indices = np.empty(min(count, len(row)), np.int64)
    size = _TOP_INDICES.holding_gil(row.ctypes.data, len(row), len(indices), indices.ctypes.data)
    return indices[:size]


def top_tokens(rows: Sequence[Logits], count: int) -> TopTokenRows | None:
    """Computes log-sum-exp and top tokens of rows ``[n]`` of one size; of equals, lower ids first.

    None if ``count`` is over 256.
    """
    if _TOP_TOKENS is None or count > _MAX_COUNT or not _are_supported(*rows):
        return None
    size, shape = len(rows[0]), (len(rows), count)
    pointers = (_POINTER * len(rows))(*[row.ctypes.data for row in rows])
    found = TopTokenRows(np.empty(len(rows)), np.empty(shape, np.int64), np.empty(shape))
    arguments = (pointers, len(rows), size, count, *[array.ctypes.data for array in found])
    is_short = len(rows) * size <= _VALUES_PER_MILLISECOND
    (_TOP_TOKENS.holding_gil if is_short else _TOP_TOKENS.releasing_gil)(*arguments)
    return found


def _are_supported(*rows: Logits) -> bool:
    return all(row.dtype == np.float32 and row.flags.c_contiguous for row in rows)


def _load(name: str, result: Any, *arguments: Any) -> NativeFunction | None:
    is_supported = Kernels.LOGITS in supported_kernels()
    return load_function(name, result, *arguments) if is_supported else None


_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_LOG_SUM_EXP = _load("triune_log_sum_exp", ctypes.c_double, _POINTER, _SIZE)
_TOP_INDICES = _load("triune_top_indices", _SIZE, _POINTER, _SIZE, _SIZE, _POINTER)
_TOP_TOKENS = _load(
    "triune_top_tokens", None, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER
)
