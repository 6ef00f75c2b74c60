"""A failure ends only the requests that cause it.

A failed run is repeated item by item: of a batch that needs too much memory, most items succeed
alone. An error while a token is chosen ends one sequence.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from server.constraint import ConstraintError
from server.engine.requests.lifecycle import Ending, Outcome
from server.out_of_memory import is_out_of_memory

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)


NOT_FINITE = Ending(Outcome.FAILED, "the model's output is not finite")
RUN_FAILED = Ending(Outcome.FAILED, "the model run failed")
NOT_CHOSEN = Ending(Outcome.FAILED, "choosing the next token failed")
NO_TOKEN = Ending(Outcome.NO_TOKEN, "no token is allowed")
OUT_OF_MEMORY = Ending(
    Outcome.OUT_OF_MEMORY, "the device has not enough free memory for this request"
)


class NoTokenError(Exception):
    """The logits processors and the constraint of a sequence forbid every token."""


def selection_failure(error: Exception) -> Ending:
    """How a sequence ends after ``error`` in token selection. Logs unexpected errors."""
    if isinstance(error, ConstraintError):
        return Ending(Outcome.UNSATISFIABLE, str(error))
    if isinstance(error, NoTokenError):
        return NO_TOKEN
    log.error("the next token could not be chosen", exc_info=error)
    return run_failure(error, NOT_CHOSEN)


def run_failure(error: Exception, otherwise: Ending = RUN_FAILED) -> Ending:
    """How sequences end whose run raised ``error``."""
    return OUT_OF_MEMORY if is_out_of_memory(error) else otherwise


class BatchResult(NamedTuple, Generic[T, R]):
    """``items`` that ran together, and their result, or how they end because the run failed."""

    items: Sequence[T]
    result: R | Ending


def run_with_isolation(
    items: Sequence[T],
    run: Callable[[Sequence[T]], R],
    label: str,
    should_run: Callable[[T], bool] = lambda _: True,
) -> Iterator[BatchResult[T, R]]:
    """Runs ``items`` together; if that raises, runs each alone to find the failing requests.

    It is a generator: the next run starts when the caller asks for the next result, so a result may
    use memory that the next run overwrites. ``run`` must allow a second call after it raised.

    Args:
        items: at least one.
        run: may raise anything.
        label: the run's, for the log.
        should_run: called before an item runs alone; False skips it, as it has ended meanwhile.
    """
    try:
        result = run(items)
    except Exception as error:
        if len(items) == 1:
            log.exception("%s failed", label)
            yield BatchResult(items, run_failure(error))
            return
        log.warning(
            "%s failed for a batch of %d; running each item alone", label, len(items), exc_info=True
        )
    else:
        yield BatchResult(items, result)
        return
    for item in items:
        if should_run(item):
            yield from run_with_isolation([item], run, label)
