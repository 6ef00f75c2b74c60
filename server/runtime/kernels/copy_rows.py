"""Copies and releases rows of tensors in one native call: native/copy_rows.cc."""

import ctypes
import threading
from array import array as packed
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from server.runtime.kernels.library import load_function
from server.runtime.memory import Array, Layout, Move


class _Packed(NamedTuple):
    """Moves in the layout of native/copy_rows.cc: ``fields``, stored at ``address``."""

    moves: list[Move]
    num_tokens: int
    fields: "packed[int]"
    address: int

    @classmethod
    def of(cls, moves: Sequence[Move]) -> "_Packed":
        fields = packed("q", chain.from_iterable(moves))
        num_tokens = sum((move.stop - move.start) * move.num_rows for move in moves)
        return cls(list(moves), num_tokens, fields, fields.buffer_info()[0])


class Table:
    """Describes tensors ``[rows, *shape]``, whose memory must stay in place."""

    def __init__(self, tensors: Sequence[tuple[Array, Layout]]) -> None:
        self._fields = np.array(
            [_description(array, layout) for array, layout in tensors], np.int64
        )
        self._address = self._fields.ctypes.data  # kept, as ``ctypes.data`` takes a microsecond
        self._num_tensors = len(tensors)
        self._packed = _Packed.of([])

    def move(self, moves: Sequence[Move]) -> bool:
        """Applies the moves in order to each tensor.

        Returns:
            False, without any effect, if the library is missing.
        """
        if _COPY_ROWS is None:
            return False
        if self._packed.moves != moves:  # often equal: each step saves the same rows
            self._packed = _Packed.of(moves)
        moved = (self._packed.address, len(moves))
        num_tokens = self._packed.num_tokens * self._num_tensors
        if num_tokens <= _SHORT_TOKENS:
            _COPY_ROWS.holding_gil(self._address, self._num_tensors, *moved)
        elif num_tokens <= _LONG_TOKENS:
            _COPY_ROWS.releasing_gil(self._address, self._num_tensors, *moved)
        else:
            half = self._num_tensors // 2
            middle = self._address + half * self._fields.strides[0]
            copy = _COPY_ROWS.releasing_gil
            _call_both(
                partial(copy, self._address, half, *moved),
                partial(copy, middle, self._num_tensors - half, *moved),
            )
        return True

    def release(self, row: int, first_token: int) -> bool:
        """Releases the pages of tokens ``first_token`` and later of ``row``; they then read as 0.

        The tensors' memory must be private and anonymous. Tensors without tokens are released only
        if ``first_token`` is 0.

        Returns:
            False, without any effect, if the library is missing.
        """
        if _RELEASE_ROW is None:
            return False
        _RELEASE_ROW.releasing_gil(self._address, self._num_tensors, row, first_token)
        return True


def _call_both(first: Callable[[], object], second: Callable[[], object]) -> None:
    """Calls both, in two threads if another thread can be started. Neither may raise."""
    helper = threading.Thread(target=first, name="copy-rows")
    try:
        helper.start()
    except RuntimeError:  # the thread limit is reached, or the interpreter shuts down
        first()
        second()
    else:
        second()
        helper.join()


def _description(array: Array, layout: Layout) -> tuple[int, ...]:
    """Returns the fields of ``Tensor`` in native/copy_rows.cc."""
    row, item = array.strides[0], array.itemsize
    if not layout.has_tokens:
        return (array.ctypes.data, row, 1, row, 0)
    num_parts, length, width = layout.shape
    return (array.ctypes.data, row, num_parts, length * width * item, width * item)


# Tokens that a call copies, over all tensors. A call with up to 1,000 (about 2 MB) keeps the
# interpreter lock. One with more than 4,000 takes 3 ms or more, and half of that in two threads.
_SHORT_TOKENS, _LONG_TOKENS = 1000, 4_000
_COPY_ROWS = load_function(
    "triune_copy_rows", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
)
_RELEASE_ROW = load_function(
    "triune_release_row", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)
