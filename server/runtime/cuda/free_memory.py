"""How much memory a GPU has left, as CUDA's runtime says; it is loaded with ONNX Runtime's."""

import ctypes

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


def free_bytes(index: int) -> int | None:
    """Of GPU ``index``; None if CUDA's runtime does not tell. Changes the thread's device."""
    for name in _LIBRARIES:
        try:
            runtime = ctypes.CDLL(name)
        except OSError:
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if runtime.cudaSetDevice(index):
            return None
        if runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
            return None
        return free.value
    return None
