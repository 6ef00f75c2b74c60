"""Copies of parts of tensors without a slice for each: native/memory.cc."""

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from server.backend.base import Array, Layout, Move
from server.backend.kernels.library import library


def table(tensors: Sequence[tuple[Array, Layout]]) -> npt.NDArray[np.int64]:
    """Where tensors ``[rows, *shape]`` are, for :func:`move`; they have to stay there."""
    return np.array([_described(array, layout) for array, layout in tensors], np.int64)


def move(tensors: npt.NDArray[np.int64], moves: Sequence[Move]) -> bool:
    """Makes the moves one after the other; False where there is no library: nothing is done."""
    if _LIBRARY is None:
        return False
    wanted = np.array(moves, np.int64)
    _LIBRARY.triune_move(tensors.ctypes.data, len(tensors), wanted.ctypes.data, len(wanted))
    return True


def _described(array: Array, layout: Layout) -> tuple[int, ...]:
    row, item = array.strides[0], array.itemsize
    if not layout.has_tokens:
        return (array.ctypes.data, row, 1, row, 0)
    num_parts, length, width = layout.shape
    return (array.ctypes.data, row, num_parts, length * width * item, width * item)


def _load() -> ctypes.CDLL | None:
    found = library()
    if found is not None:
        found.triune_move.argtypes = (
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
        )
        found.triune_move.restype = None
    return found


_LIBRARY = _load()
