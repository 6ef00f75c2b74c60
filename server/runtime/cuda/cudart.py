"""Calls the CUDA runtime that ONNX Runtime has loaded.

Source: CUDA Runtime API. ``ctypes`` releases the interpreter lock during a call. Calls that only
enqueue work on a stream keep it: they take less time than reacquiring the lock from a busy thread.
"""

import ctypes
import os
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")

_POINTER, _SIZE, _INT, _FLAGS = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
# The argument types of the functions that ``call`` calls.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cudaGetLastError": (),
    "cudaGetErrorString": (_INT,),
    "cudaSetDevice": (_INT,),
    "cudaMemGetInfo": (_POINTER, _POINTER),
    "cudaMemsetAsync": (_POINTER, _INT, _SIZE, _POINTER),
    "cudaMemcpyAsync": (_POINTER, _POINTER, _SIZE, _INT, _POINTER),
    "cudaMemcpy2DAsync": (_POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _SIZE, _INT, _POINTER),
    "cudaHostAlloc": (_POINTER, _SIZE, _FLAGS),
    "cudaFreeHost": (_POINTER,),
    "cudaStreamCreateWithFlags": (_POINTER, _FLAGS),
    "cudaStreamDestroy": (_POINTER,),
    "cudaStreamSynchronize": (_POINTER,),
    "cudaStreamQuery": (_POINTER,),
    "cudaStreamBeginCapture": (_POINTER, _INT),
    "cudaStreamEndCapture": (_POINTER, _POINTER),
    "cudaEventCreateWithFlags": (_POINTER, _FLAGS),
    "cudaEventDestroy": (_POINTER,),
    "cudaEventRecord": (_POINTER, _POINTER),
    "cudaEventSynchronize": (_POINTER,),
    "cudaGraphGetNodes": (_POINTER, _POINTER, _POINTER),
    "cudaGraphNodeGetType": (_POINTER, _POINTER),
    "cudaGraphMemcpyNodeGetParams": (_POINTER, _POINTER),
    # The signature since CUDA 12; CUDA 11 had other arguments from the third on.
    "cudaGraphInstantiate": (_POINTER, _POINTER, ctypes.c_ulonglong),
    "cudaGraphDestroy": (_POINTER,),
    "cudaGraphExecDestroy": (_POINTER,),
    "cudaGraphLaunch": (_POINTER, _POINTER),
}
# These functions enqueue work on a stream, or query its state, and do not wait for the device.
_HOLDING_LOCK = (
    *("cudaSetDevice", "cudaMemsetAsync", "cudaMemcpyAsync", "cudaMemcpy2DAsync"),
    *("cudaStreamQuery", "cudaEventRecord", "cudaGraphLaunch", "cudaGetLastError"),
)
_NOT_READY = 600
_SHORT_SECONDS = 50e-6


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed."""


@cache
def _library() -> ctypes.CDLL | None:
    # Tries the library that is already loaded first: the machine may have others.
    for mode in (os.RTLD_NOLOAD, ctypes.DEFAULT_MODE):
        for name in _LIBRARIES:
            try:
                library = ctypes.CDLL(name, mode)
            except OSError:
                continue
            holding = ctypes.PyDLL(None, handle=library._handle)
            for function in _HOLDING_LOCK:
                if hasattr(holding, function):
                    setattr(library, function, getattr(holding, function))
            for function, arguments in _ARGUMENTS.items():
                if hasattr(library, function):
                    getattr(library, function).argtypes = arguments
            library.cudaGetErrorString.restype = ctypes.c_char_p
            return library
    return None


def call(function: str, *arguments: Any) -> None:
    """Calls a function that returns an error code.

    Raises:
        CudaError: the code is not 0, or there is no CUDA runtime.
    """
    library = _library()
    if library is None:
        raise CudaError("the CUDA runtime is not loaded")
    error = getattr(library, function)(*arguments)
    if error:
        library.cudaGetLastError()  # else ONNX Runtime's next check finds it
        raise _failure(library, function, error)


def _failure(library: ctypes.CDLL, function: str, error: int) -> CudaError:
    """Returns the error of a call. Its text lets :mod:`server.out_of_memory` recognise it."""
    text: bytes = library.cudaGetErrorString(error)
    return CudaError(f"{function}: error {error}, {text.decode(errors='replace')}")


def free_bytes(index: int) -> int | None:
    """Returns the free bytes of GPU ``index`` (``cudaMemGetInfo``); None if unknown.

    Makes ``index`` the calling thread's current device.
    """
    library = _library()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if library is None or library.cudaSetDevice(index):
        return None
    if library.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
        return None
    return free.value


def zero(index: int, parts: Iterable[tuple[int, int]]) -> None:
    """Zeroes ``parts`` of the memory of GPU ``index``, each ``(address, bytes)``, and waits.

    Makes ``index`` the calling thread's current device.

    Raises:
        CudaError: CUDA reports an error, or is not loaded.
    """
    call("cudaSetDevice", index)
    for pointer, num_bytes in parts:
        call("cudaMemsetAsync", pointer, 0, num_bytes, None)
    wait_for_short_work()


def wait_for_short_work() -> None:
    """Waits for the default stream of the thread's GPU.

    It polls once, then for up to 50 us, and keeps the interpreter lock meanwhile: reacquiring it
    from a busy thread takes up to a millisecond.

    Raises:
        CudaError: CUDA reports an error.
    """
    library, end = _library(), time.monotonic() + _SHORT_SECONDS
    while library is not None:
        error = library.cudaStreamQuery(None)
        if not error:
            return
        library.cudaGetLastError()  # else ONNX Runtime's next check finds "not ready"
        if error != _NOT_READY:
            raise _failure(library, "cudaStreamQuery", error)
        if time.monotonic() >= end:
            break
    call("cudaStreamSynchronize", None)
