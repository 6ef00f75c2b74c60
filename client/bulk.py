"""Many inputs: in requests of a few, several at a time, whose results come in order.

with Client("localhost:50051", retry=RetryPolicy(attempts=10)) as client:
    embed = functools.partial(client.embed, "minilm")
    for texts, result in in_order(embed, batches(lines)):
        ...
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

BATCH_SIZE = 32
IN_FLIGHT = 6
"""By default a server's queue of a model holds 256 texts: others have places in it too."""

Item = TypeVar("Item")
Request = TypeVar("Request")
Result = TypeVar("Result")


def batches(items: Iterable[Item], size: int = BATCH_SIZE) -> Iterator[list[Item]]:
    """Lists of ``size`` items, and of fewer at the end."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def in_order(
    call: Callable[[Request], Result], requests: Iterable[Request], *, in_flight: int = IN_FLIGHT
) -> Generator[tuple[Request, Result], None, None]:
    """Yields each request and its result, in the order of ``requests``.

    Threads make up to ``in_flight`` calls at a time, of a client that is thread-safe, while
    ``requests`` is read up to ``2 * in_flight`` ahead of the results. The error of a call is raised
    in the place of its result; then, and if the generator is closed, calls that have not begun are
    dropped.
    """
    started: deque[tuple[Request, Future[Result]]] = deque()
    with ThreadPoolExecutor(in_flight) as threads:
        try:
            for request in requests:
                started.append((request, threads.submit(call, request)))
                if len(started) >= 2 * in_flight:
                    yield _oldest(started)
            while started:
                yield _oldest(started)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _oldest(started: deque[tuple[Request, Future[Result]]]) -> tuple[Request, Result]:
    request, future = started.popleft()
    return request, future.result()
