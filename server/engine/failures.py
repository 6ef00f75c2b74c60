"""A failure ends only the requests that cause it.

A failed run is repeated item by item: of a batch that needs too much memory, most items succeed
alone. An error while a token is chosen ends one sequence.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from server.constraint import ConstraintError
from server.engine.requests.lifecycle import Outcome
from server.out_of_memory import is_out_of_memory

NOT_FINITE = "the model's output is not finite"
RUN_FAILED = "the model run failed"
OUT_OF_MEMORY = "the device has not enough free memory for this request"
NOT_CHOSEN = "choosing the next token failed"
NO_TOKEN = "no token is allowed"

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)


class Failure(NamedTuple):
    """How a failed sequence ends. ``message`` is for the caller."""

    outcome: Outcome
    message: str


def selection_failure(error: Exception) -> Failure:
    """How a sequence ends after ``error`` in token selection. Logs all but ``ConstraintError``."""
    if isinstance(error, ConstraintError):
        return Failure(Outcome.UNSATISFIABLE, str(error))
    log.error("the next token could not be chosen", exc_info=error)
    return Failure(Outcome.FAILED, message_of(error, NOT_CHOSEN))


def message_of(error: Exception, otherwise: str = RUN_FAILED) -> str:
    """What the caller of a failed sequence learns of ``error``: no memory, or ``otherwise``."""
    return OUT_OF_MEMORY if is_out_of_memory(error) else otherwise


class BatchResult(NamedTuple, Generic[T, R]):
    """``items`` that ran together.

    ``result``: None if the run failed. ``failure``: then the reason, for the callers.
    """

    items: Sequence[T]
    result: R | None
    failure: str = ""


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
            yield BatchResult(items, None, message_of(error))
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
