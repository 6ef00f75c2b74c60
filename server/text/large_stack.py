"""Runs native code whose recursion depth depends on its input."""

import threading
from collections.abc import Callable
from typing import TypeVar

# Size of the address space. Memory is committed as the recursion needs it, and freed at the end.
STACK_BYTES = 256 << 20

T = TypeVar("T")
_lock = threading.Lock()


def run_with_large_stack(function: Callable[[], T]) -> T:
    """Runs ``function`` in a new thread with :data:`STACK_BYTES` of stack. Returns its result.

    Raises:
        BaseException: the exception that ``function`` raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="large-stack", daemon=True)
    with _lock:  # stack_size applies to every thread that the process starts at this time
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors.pop()  # a variable would make a cycle: the traceback keeps this frame
    return results[0]
