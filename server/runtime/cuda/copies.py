"""Copies within GPU memory: one native kernel makes many copies, else CUDA is called for each.

A call of ``cudaMemcpy2DAsync`` takes the host about 17 us: 37 ms when 48 sequences of a model with
22 layers move. Neither way allocates memory. A CPU that stands for a GPU in tests makes the same
copies in host memory.
"""

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache

from server.runtime.cuda import cudart
from server.runtime.kernels.library import CUDA_LIBRARY, NativeFunction, load_function
from server.runtime.memory import Array

FIELDS = ("source", "target", "width", "source_pitch", "target_pitch", "num_parts")
"""The int64 fields of a copy: ``num_parts`` parts of ``width`` bytes are copied from address
``source`` to ``target``, where they begin a pitch (in bytes) apart. ``Copy`` in
native/cuda/device/arguments.h has the same fields."""

_DEVICE_TO_DEVICE = 3


def copy(index: int, groups: Sequence[Array]) -> None:
    """Makes copies in the memory of GPU ``index``, group by group, and waits for them.

    Makes ``index`` the calling thread's current device.

    Args:
        index: the number of the GPU.
        groups: arrays ``[copies, fields]`` int64 with the columns :data:`FIELDS`. No copy of a
            group reads or writes what another copy of the same group writes.

    Raises:
        CudaError: CUDA reports an error, or is not loaded.
    """
    cudart.call("cudaSetDevice", index)
    for group in groups:
        if not _launch(group):
            for source, target, width, source_pitch, target_pitch, num_parts in group.tolist():
                places = (target, target_pitch, source, source_pitch)
                copied = (*places, width, num_parts, _DEVICE_TO_DEVICE, None)
                cudart.call("cudaMemcpy2DAsync", *copied)
    cudart.wait_for_short_work()


def copy_on_host(groups: Iterable[Array]) -> None:
    """Makes copies as :func:`copy` does, in host memory.

    Of a group, the last copy is made first: a GPU makes them in any order.
    """
    for group in groups:
        for copied in reversed(group.tolist()):
            source, target, width, source_pitch, target_pitch, num_parts = copied
            for part in range(num_parts):
                place = (target + part * target_pitch, source + part * source_pitch)
                ctypes.memmove(*place, width)


def clear_on_host(parts: Iterable[tuple[int, int]]) -> None:
    """Zeroes parts of host memory, as :func:`server.runtime.cuda.cudart.zero` does of a GPU's."""
    for pointer, num_bytes in parts:
        ctypes.memset(pointer, 0, num_bytes)


def _launch(group: Array) -> bool:
    """Starts copies on the default stream. Returns False if the kernel cannot make them."""
    function = _function()
    if function is None:
        return False
    failure = function.holding_gil(group.ctypes.data, len(group), None)
    return failure is None


@cache
def _function() -> NativeFunction | None:
    """Loads the native function; None if it was not built, or its code does not fit this GPU."""
    arguments = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    function = load_function("triune_copy", ctypes.c_char_p, *arguments, library=CUDA_LIBRARY)
    if function is None or function.releasing_gil(None, 0, None) is not None:
        return None
    return function
