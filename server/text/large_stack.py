"""Runs native code whose recursion depth depends on its input."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

# Address space only: memory is committed as the recursion needs it, and freed at the end.
STACK_BYTES = 256 << 20

T = TypeVar("T")
_lock = threading.Lock()


def run_with_large_stack(function: Callable[[], T]) -> T:
    """Runs ``function`` in a new thread with :data:`STACK_BYTES` of stack. Returns its result.

    Raises:
        BaseException: whatever ``function`` raises.
    """
    results: SimpleQueue[T] = SimpleQueue()
    errors: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            results.put(function())
            errors.put(None)
        except BaseException as error:
            errors.put(error)

    thread = threading.Thread(target=run, name="large-stack", daemon=True)
    with _lock:  # stack_size applies to every thread that the process starts meanwhile
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    error = errors.get()
    try:
        if error is not None:
            raise error
        return results.get()
    finally:
        del error  # it keeps this frame, which would keep it
