"""Copies of parts of tensors without a slice for each: native/memory.cc."""

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from server.runtime.contract import Array, Layout, Move
from server.runtime.kernels.library import function


def table(tensors: Sequence[tuple[Array, Layout]]) -> npt.NDArray[np.int64]:
    """Where tensors ``[rows, *shape]`` are, for :func:`move`; they have to stay there."""
    return np.array([_described(array, layout) for array, layout in tensors], np.int64)


def move(tensors: npt.NDArray[np.int64], moves: Sequence[Move]) -> bool:
    """Makes the moves one after the other; False where there is no library: nothing is done."""
    if _MOVE is None:
        return False
    wanted = np.array(moves, np.int64)
    arguments = (tensors.ctypes.data, len(tensors), wanted.ctypes.data, len(wanted))
    num_tokens = sum((move.stop - move.start) * move.num_rows for move in moves)
    is_brief = num_tokens * len(tensors) <= _BRIEF_TOKENS
    (_MOVE.briefly if is_brief else _MOVE.lengthily)(*arguments)
    return True


def _described(array: Array, layout: Layout) -> tuple[int, ...]:
    row, item = array.strides[0], array.itemsize
    if not layout.has_tokens:
        return (array.ctypes.data, row, 1, row, 0)
    num_parts, length, width = layout.shape
    return (array.ctypes.data, row, num_parts, length * width * item, width * item)


_BRIEF_TOKENS = 1000  # of all tensors: about 2 MB
_MOVE = function(
    "triune_move", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
)
