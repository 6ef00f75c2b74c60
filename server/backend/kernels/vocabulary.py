"""What the host asks of rows of logits, in one pass over each: native/vocabulary.cc.

None where this machine cannot run it.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from server.backend.kernels.library import Kernels, library, runnable

_MEMORY, _COUNT = ctypes.c_void_p, ctypes.c_int64
_MAX_COUNT = 256
Row = npt.NDArray[np.float32]


class Likeliest(NamedTuple):
    """Of rows of logits: log-sum-exp ``[rows]``; places and log-probabilities ``[rows, count]``.

    A place is -1 where there are fewer.
    """

    totals: npt.NDArray[np.float64]
    places: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]


def log_sum_exp(row: Row) -> float | None:
    """``log(sum(exp(row)))`` of a contiguous ``row [n]``; NaN if one is."""
    if (found := _library_for(row)) is None:
        return None
    return float(found.triune_log_sum_exp(row.ctypes.data, len(row)))


def top_indices(row: Row, count: int) -> npt.NDArray[np.intp] | None:
    """Of the ``count`` largest of ``row [n]``, largest first, of equal ones the lower first.

    Fewer where there are fewer. Time grows with ``count``: none for more than 256.
    """
    if count > _MAX_COUNT or (found := _library_for(row)) is None:
        return None
    places = np.empty(min(count, len(row)), np.int64)
    size = found.triune_top(row.ctypes.data, len(row), len(places), places.ctypes.data)
    return places[:size]


def likeliest(rows: Sequence[Row], count: int) -> Likeliest | None:
    """Both of several rows ``[n]``, of one size; of equal ones the lower comes first."""
    size = len(rows[0])
    if count > _MAX_COUNT or (found := _library_for(*rows)) is None:
        return None
    pointers = (_MEMORY * len(rows))(*[row.ctypes.data for row in rows])
    shape = (len(rows), count)
    made = Likeliest(np.empty(len(rows)), np.empty(shape, np.int64), np.empty(shape))
    written = [array.ctypes.data for array in made]
    found.triune_likeliest(pointers, len(rows), size, count, *written)
    return made


def _load() -> ctypes.CDLL | None:
    found = library()
    if found is None or Kernels.VOCABULARY not in runnable():
        return None
    found.triune_log_sum_exp.argtypes = (_MEMORY, _COUNT)
    found.triune_log_sum_exp.restype = ctypes.c_double
    found.triune_top.argtypes = (_MEMORY, _COUNT, _COUNT, _MEMORY)
    found.triune_top.restype = ctypes.c_int64
    found.triune_likeliest.argtypes = (
        *(_MEMORY, _COUNT, _COUNT, _COUNT),
        *(_MEMORY, _MEMORY, _MEMORY),
    )
    found.triune_likeliest.restype = None
    return found


_LIBRARY = _load()


def _library_for(*rows: Row) -> ctypes.CDLL | None:
    are_plain = all(row.dtype == np.float32 and row.flags.c_contiguous for row in rows)
    return _LIBRARY if are_plain else None
