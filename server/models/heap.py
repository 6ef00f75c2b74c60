"""Trims the C heap: returns its free memory to the operating system."""

import ctypes
from contextlib import suppress


def trim_heap() -> None:
    """Calls glibc's ``malloc_trim(3)``; does nothing with other C libraries.

    A model's weights are many allocations; the C library would keep most of that memory.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
