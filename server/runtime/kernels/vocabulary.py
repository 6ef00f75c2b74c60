"""What the host asks of rows of logits, in one pass over each: native/vocabulary.cc.

None where this machine cannot run it.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from server.runtime.kernels.library import Function, Kernels, function, runnable

_MEMORY, _COUNT = ctypes.c_void_p, ctypes.c_int64
_MAX_COUNT = 256
Row = npt.NDArray[np.float32]


class LikeliestOfRows(NamedTuple):
    """Of rows of logits: log-sum-exp ``[rows]``; places and log-probabilities ``[rows, count]``.

    A place is -1 where there are fewer.
    """

    totals: npt.NDArray[np.float64]
    places: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]


def log_sum_exp(row: Row) -> float | None:
    """``log(sum(exp(row)))`` of a contiguous ``row [n]``; NaN if one is."""
    if _LOG_SUM_EXP is None or not _are_plain(row):
        return None
    return float(_LOG_SUM_EXP.briefly(row.ctypes.data, len(row)))


def top_indices(row: Row, count: int) -> npt.NDArray[np.intp] | None:
    """Of the ``count`` largest of ``row [n]``, largest first, of equal ones the lower first.

    Fewer where there are fewer. Time grows with ``count``: none for more than 256.
    """
    if _TOP is None or count > _MAX_COUNT or not _are_plain(row):
        return None
    places = np.empty(min(count, len(row)), np.int64)
    size = _TOP.briefly(row.ctypes.data, len(row), len(places), places.ctypes.data)
    return places[:size]


def likeliest(rows: Sequence[Row], count: int) -> LikeliestOfRows | None:
    """Both of several rows ``[n]``, of one size; of equal ones the lower comes first."""
    if _LIKELIEST is None or count > _MAX_COUNT or not _are_plain(*rows):
        return None
    size, shape = len(rows[0]), (len(rows), count)
    pointers = (_MEMORY * len(rows))(*[row.ctypes.data for row in rows])
    made = LikeliestOfRows(np.empty(len(rows)), np.empty(shape, np.int64), np.empty(shape))
    arguments = (pointers, len(rows), size, count, *[array.ctypes.data for array in made])
    is_brief = len(rows) * size <= _BRIEF_VALUES
    (_LIKELIEST.briefly if is_brief else _LIKELIEST.lengthily)(*arguments)
    return made


def _are_plain(*rows: Row) -> bool:
    return all(row.dtype == np.float32 and row.flags.c_contiguous for row in rows)


def _function(name: str, result: Any, *arguments: Any) -> Function | None:
    return function(name, result, *arguments) if Kernels.VOCABULARY in runnable() else None


_BRIEF_VALUES = 2_000_000  # about a millisecond
_LOG_SUM_EXP = _function("triune_log_sum_exp", ctypes.c_double, _MEMORY, _COUNT)
_TOP = _function("triune_top", _COUNT, _MEMORY, _COUNT, _COUNT, _MEMORY)
_LIKELIEST = _function(
    "triune_likeliest", None, _MEMORY, _COUNT, _COUNT, _COUNT, _MEMORY, _MEMORY, _MEMORY
)
