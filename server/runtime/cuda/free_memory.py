"""Free memory of a GPU, from the CUDA runtime that ONNX Runtime has loaded."""

import ctypes

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


def free_bytes(index: int) -> int | None:
    """Free bytes of GPU ``index`` (``cudaMemGetInfo``); None if CUDA does not report them.

    Makes ``index`` the calling thread's current device.
    """
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
