"""What the host asks of a row of logits, in one pass over it: native/vocabulary.cc.

None where this machine cannot run it.
"""

import ctypes

import numpy as np
import numpy.typing as npt

from server.backend.kernels.library import LIBRARY, Kernels, runnable

_ROW = ctypes.c_void_p


def log_sum_exp(row: npt.NDArray[np.float32]) -> float | None:
    """``log(sum(exp(row)))`` of a contiguous ``row [n]``; NaN if one is."""
    if (library := _library(row)) is None:
        return None
    return float(library.triune_log_sum_exp(row.ctypes.data, len(row)))


def top_indices(row: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.intp] | None:
    """Of the ``count`` largest of ``row [n]``, largest first, of equal ones the lower first.

    Fewer where there are fewer. Time grows with ``count``: none for more than 256.
    """
    if count > _MAX_COUNT or (library := _library(row)) is None:
        return None
    places = np.empty(min(count, len(row)), np.int64)
    found = library.triune_top(row.ctypes.data, len(row), len(places), places.ctypes.data)
    return places[:found]


_MAX_COUNT = 256


def _load() -> ctypes.CDLL | None:
    if Kernels.VOCABULARY not in runnable():
        return None
    library = ctypes.CDLL(str(LIBRARY))
    library.triune_log_sum_exp.argtypes = (_ROW, ctypes.c_int64)
    library.triune_log_sum_exp.restype = ctypes.c_double
    library.triune_top.argtypes = (_ROW, ctypes.c_int64, ctypes.c_int64, _ROW)
    library.triune_top.restype = ctypes.c_int64
    return library


_LIBRARY = _load()


def _library(row: npt.NDArray[np.float32]) -> ctypes.CDLL | None:
    is_plain = row.dtype == np.float32 and row.flags.c_contiguous
    return _LIBRARY if is_plain else None
