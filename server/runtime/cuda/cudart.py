"""Calls of the CUDA runtime that ONNX Runtime has loaded: free memory, strided copies, zeros.

None of them allocates memory of the GPU.

Source: CUDA Runtime API, "Memory Management".
"""

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
_DEVICE_TO_DEVICE = 3


class StridedCopy(NamedTuple):
    """Copies ``num_parts`` parts of ``width`` bytes, ``pitch`` apart, between device addresses."""

    source: int
    target: int
    width: int
    pitch: int
    num_parts: int


@cache
def _library() -> ctypes.CDLL | None:
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        library.cudaMemcpy2DAsync.argtypes = [
            *(pointer, size, pointer, size, size, size, ctypes.c_int, pointer)
        ]
        library.cudaMemsetAsync.argtypes = [pointer, ctypes.c_int, size, pointer]
        library.cudaStreamSynchronize.argtypes = [pointer]
        return library
    return None


def is_loaded() -> bool:
    """Whether the runtime is there."""
    return _library() is not None


def free_bytes(index: int) -> int | None:
    """Free bytes of GPU ``index`` (``cudaMemGetInfo``); None if CUDA does not report them.

    Makes ``index`` the calling thread's current device.
    """
    library = _library()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if library is None or library.cudaSetDevice(index):
        return None
    if library.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
        return None
    return free.value


def copy(index: int, copies: Iterable[StridedCopy]) -> None:
    """Makes copies in the memory of GPU ``index``, in order, and waits for them.

    Makes ``index`` the calling thread's current device.

    Raises:
        RuntimeError: CUDA reports an error, or is not there.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the CUDA runtime is not loaded")
    error = library.cudaSetDevice(index)
    for source, target, width, pitch, num_parts in copies:
        error = error or library.cudaMemcpy2DAsync(
            target, pitch, source, pitch, width, num_parts, _DEVICE_TO_DEVICE, None
        )
    error = error or library.cudaStreamSynchronize(None)
    if error:
        raise RuntimeError(f"CUDA cannot copy in device memory: error {error}")


def zero(index: int, parts: Iterable[tuple[int, int]]) -> None:
    """Fills parts of the memory of GPU ``index``, an address and bytes each, with zeros; waits.

    Makes ``index`` the calling thread's current device.

    Raises:
        RuntimeError: CUDA reports an error, or is not there.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the CUDA runtime is not loaded")
    error = library.cudaSetDevice(index)
    for pointer, num_bytes in parts:
        error = error or library.cudaMemsetAsync(pointer, 0, num_bytes, None)
    error = error or library.cudaStreamSynchronize(None)
    if error:
        raise RuntimeError(f"CUDA cannot clear device memory: error {error}")
