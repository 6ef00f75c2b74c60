"""Loads the native libraries built from ``native/``, and finds the kernels for this CPU."""

import ctypes
from collections.abc import Callable
from enum import IntFlag
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LIBRARY = Path(__file__).parents[1] / "libtriune_kernels.so"
CUDA_LIBRARY = LIBRARY.with_name("libtriune_cuda.so")


class Kernels(IntFlag):
    """The library's kernels; native/library.cc has the same numbers."""

    INT8_MATMUL = 1
    MATMUL = 2
    LOGITS = 4
    ATTENTION = 8
    NORM = 16
    BLOCK_MATMUL = 32
    TOKEN_SUM = 64
    SSRU = 128
    EMBEDDING = 256

    @property
    def label(self) -> str:
        """The name of one kernel in logs, metrics and descriptions of models."""
        return str(self.name).lower()


class NativeFunction(NamedTuple):
    """A function of the library, loaded twice.

    ``holding_gil`` keeps the global interpreter lock: for calls of a few microseconds, which are
    shorter than the time to reacquire the lock. ``releasing_gil`` lets other threads run.
    """

    holding_gil: Callable[..., Any]
    releasing_gil: Callable[..., Any]


def load_function(
    name: str, result: Any, *arguments: Any, library: Path | None = None
) -> NativeFunction | None:
    """Loads a function of a native library.

    Args:
        name: the function's name.
        result: the ctypes type of its result.
        arguments: the ctypes types of its arguments.
        library: the path of the library; None is :data:`LIBRARY`.

    Returns:
        None if the library was not built, or is for another kind of processor.
    """
    loaded = []
    for loader in (ctypes.PyDLL, ctypes.CDLL):
        try:
            function = getattr(loader(str(library or LIBRARY)), name)
        except OSError:
            return None
        function.restype, function.argtypes = result, arguments
        loaded.append(function)
    return NativeFunction(*loaded)


@cache
def supported_kernels() -> Kernels:
    """Returns the kernels that this CPU can run."""
    return _ask("triune_supported_kernels")


@cache
def preferred_kernels() -> Kernels:
    """Returns the kernels that are faster on this CPU than ONNX Runtime's own operators."""
    return _ask("triune_preferred_kernels")


def kernels_in_use() -> dict[str, bool]:
    """Returns, by kernel name, whether it replaces ONNX Runtime's own operators on this CPU."""
    preferred = preferred_kernels()
    return {kernel.label: kernel in preferred for kernel in Kernels}


def use_registers(bits: int) -> bool:
    """Sets the register width for all later packing and runs.

    For tests and benchmarks.

    Args:
        bits: 256, 512, or 8192 for AMX tiles; 0 restores the default, the widest of this CPU.

    Returns:
        Whether this CPU has such registers.
    """
    function = load_function("triune_use_registers", ctypes.c_bool, ctypes.c_int)
    return function is not None and bool(function.holding_gil(bits))


def _ask(name: str) -> Kernels:
    function = load_function(name, ctypes.c_int)
    return Kernels(0) if function is None else Kernels(function.holding_gil())
