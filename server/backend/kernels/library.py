"""The library that ``native/`` becomes, and what of it is worth using on this processor."""

import ctypes
from enum import IntFlag
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).parents[1] / "libtriune_kernels.so"
DOMAIN = "triune"


class Kernels(IntFlag):
    """Those of the library: native/operators.cc."""

    ROW_INT8 = 1
    MATMUL = 2
    VOCABULARY = 4
    ATTENTION = 8


@cache
def library() -> ctypes.CDLL | None:
    """None where there is none: it was not built, or is for another kind of processor."""
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None


@cache
def runnable() -> Kernels:
    """What this machine can run at all."""
    return _answer("triune_runnable")


@cache
def worthwhile() -> Kernels:
    """What is faster here than ONNX Runtime's own operators."""
    return _answer("triune_worthwhile")


def _answer(function: str) -> Kernels:
    found = library()
    return Kernels(0) if found is None else Kernels(getattr(found, function)())
