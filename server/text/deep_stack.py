"""Runs native code whose recursion depth depends on its input."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

# Address space only: memory is committed as the recursion needs it, and freed at the end.
STACK_BYTES = 256 << 20

T = TypeVar("T")
_lock = threading.Lock()


def on_deep_stack(function: Callable[[], T]) -> T:
    """Runs ``function`` in a new thread with :data:`STACK_BYTES` of stack. Returns its result.

    Raises:
        BaseException: whatever ``function`` raises.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="deep-stack", daemon=True)
    with _lock:  # stack_size applies to every thread that the process starts meanwhile
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return result.result()
