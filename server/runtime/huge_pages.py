"""Places arrays on pages of 2 MiB, which Linux makes of memory that asks for them.

A decode step reads every weight once. With pages of 4 KiB, the processor looks up an address for
each of them, and prefetches no further than their ends.
"""

import threading
import weakref

import numpy as np

from server.runtime.memory import Array
from server.runtime.pages import mapped

_PAGE = 2 << 20  # bytes
_CHUNK = 8 * _PAGE
_ALIGNMENT = 64  # bytes of a cache line and of the widest registers


class HugePages:
    """Copies arrays one after the other into chunks. A chunk is freed with its last array."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: weakref.ref[Array] | None = None
        self._free = 0
        """Where the chunk's unused part begins."""

    def place(self, array: Array) -> Array:
        """Returns a copy of ``array``, contiguous and aligned to cache lines."""
        with self._lock:
            chunk = None if self._chunk is None else self._chunk()
            if chunk is None or len(chunk) - self._free < array.nbytes:
                chunk, self._free = _mapped(max(_CHUNK, array.nbytes))
                self._chunk = weakref.ref(chunk)
            end = self._free + array.nbytes
            copy = chunk[self._free : end].view(array.dtype).reshape(array.shape)
            self._free = end + -end % _ALIGNMENT
        copy[...] = array
        return copy


def _mapped(num_bytes: int) -> tuple[Array, int]:
    """New memory for ``num_bytes``, and where its first page of 2 MiB begins."""
    chunk = np.frombuffer(mapped(num_bytes + _PAGE, "MADV_HUGEPAGE"), np.uint8)
    return chunk, -chunk.ctypes.data % _PAGE
