"""Memory that is free goes back to the system."""

import ctypes
from contextlib import suppress


def release_free_memory() -> None:
    """Has the C library give back what it keeps for later, where it can (glibc: malloc_trim(3)).

    The weights of a model are many pieces, and without this most of them stay with the process.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
