"""Keeps equal constants once: both graphs of an encoder-decoder may have a tied embedding."""

import hashlib
import weakref

import numpy as np

from server.runtime.memory import Array

_MIN_BYTES = 64 << 10  # smaller constants cost less to copy than to compare
_ALIGNMENT = 64  # bytes of a cache line and of the widest registers

_in_use: "weakref.WeakValueDictionary[tuple[bytes, str, tuple[int, ...]], Array]" = (
    weakref.WeakValueDictionary()
)
"""The constants in use, by digest, type and shape."""


def _aligned(array: Array) -> Array:
    """Returns the array, or a copy, contiguous and aligned to cache lines."""
    if array.flags.c_contiguous and array.ctypes.data % _ALIGNMENT == 0:
        return array
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def shared(array: Array) -> Array:
    """Returns ``array``, or an equal array that a graph already has. Large arrays are read-only."""
    if array.nbytes < _MIN_BYTES:
        return array
    contiguous = _aligned(array)
    contiguous.flags.writeable = False
    digest = hashlib.blake2b(contiguous.data, digest_size=32).digest()
    return _in_use.setdefault((digest, array.dtype.str, array.shape), contiguous)
