"""Gives other threads the interpreter lock sooner while a model is loaded."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SECONDS = 0.0005


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shortens the time that a thread waits for the interpreter lock.

    The default is 5 ms. A token passes through three threads, so a load, which runs Python for
    seconds, would add 15 ms to each token. Only one thread at a time may use this.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
