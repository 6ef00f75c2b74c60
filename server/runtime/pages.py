"""Arrays over separately mapped pages, which the process can release one by one."""

import contextlib
import ctypes
import math
import mmap

import numpy as np
import numpy.typing as npt

from server.runtime.memory import Array

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Returns an array of zeros. Each page takes no memory until it is first written.

    NumPy asks for huge pages (2 MiB), and a few tokens in each row of a cache would touch nearly
    all of them. This array has small pages.
    """
    dtype = np.dtype(dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    if not num_bytes:
        return np.zeros(shape, dtype)
    memory = mapped(num_bytes, "MADV_NOHUGEPAGE")
    return np.frombuffer(memory, np.uint8, num_bytes).view(dtype).reshape(shape)


def mapped(num_bytes: int, advice: str) -> mmap.mmap:
    """Returns new memory of zeros, with advice to Linux: the name of a constant of ``mmap``."""
    memory = mmap.mmap(-1, num_bytes, flags=_FLAGS)
    if hasattr(mmap, advice):
        with contextlib.suppress(OSError):  # Linux may have been built without huge pages
            memory.madvise(getattr(mmap, advice))
    return memory


def resident_bytes(array: Array) -> int:
    """Returns the bytes of an array of :func:`zeros` that are resident in memory.

    Other threads may use the array.

    Raises:
        OSError: the operating system does not report it.
    """
    if not array.nbytes:
        return 0
    num_pages = -(-array.nbytes // mmap.PAGESIZE)
    states = np.empty(num_pages, np.uint8)
    if _LIBC.mincore(array.ctypes.data, array.nbytes, states.ctypes.data):
        raise OSError(ctypes.get_errno(), "mincore failed")
    return int(np.count_nonzero(states & 1)) * mmap.PAGESIZE


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
