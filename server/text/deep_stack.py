"""For native code that recurses as deeply as its input says."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

# Of addresses; memory is taken as far as the recursion goes, and given back.
STACK_BYTES = 256 << 20

T = TypeVar("T")
_lock = threading.Lock()


def on_deep_stack(function: Callable[[], T]) -> T:
    """``function()``, in a thread of its own with :data:`STACK_BYTES` of stack.

    Raises:
        Exception: what ``function`` raises.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="deep-stack", daemon=True)
    with _lock:  # the size is the process's: of threads that start meanwhile
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return result.result()
