"""The library that ``native/`` becomes, and what of it is worth using on this processor."""

import ctypes
from collections.abc import Callable
from enum import IntFlag
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LIBRARY = Path(__file__).parents[1] / "libtriune_kernels.so"
DOMAIN = "triune"


class Kernels(IntFlag):
    """Those of the library: native/operators.cc."""

    ROW_INT8 = 1
    MATMUL = 2
    VOCABULARY = 4
    ATTENTION = 8
    NORM = 16


class Function(NamedTuple):
    """One of the library's, twice.

    ``briefly`` keeps the interpreter's lock: a thread that gives it up for some microseconds
    waits longer than that to have it back. ``lengthily`` lets others run.
    """

    briefly: Callable[..., Any]
    lengthily: Callable[..., Any]


def function(name: str, result: Any, *arguments: Any) -> Function | None:
    """By ctypes' types. None where there is no library."""
    made = []
    for kind in (ctypes.PyDLL, ctypes.CDLL):
        try:
            found = getattr(kind(str(LIBRARY)), name)
        except OSError:  # it was not built, or is for another kind of processor
            return None
        found.restype, found.argtypes = result, arguments
        made.append(found)
    return Function(*made)


@cache
def runnable() -> Kernels:
    """What this machine can run at all."""
    return _answer("triune_runnable")


@cache
def worthwhile() -> Kernels:
    """What is faster here than ONNX Runtime's own operators."""
    return _answer("triune_worthwhile")


def use_registers(bits: int) -> bool:
    """For tests and measurements: has all that is packed and run from now on use these.

    Args:
        bits: 256 or 512; 0: the widest that this processor has, as without this.

    Returns:
        Whether it has such.
    """
    found = function("triune_use_registers", ctypes.c_bool, ctypes.c_int)
    return found is not None and bool(found.briefly(bits))


def _answer(name: str) -> Kernels:
    found = function(name, ctypes.c_int)
    return Kernels(0) if found is None else Kernels(found.briefly())
