"""Failures end only the requests that cause them.

A run that fails is repeated item by item, and an error while a token is chosen ends one sequence.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from server.constraint import ConstraintError
from server.engine.requests.lifecycle import Outcome

NOT_FINITE = "the model's output is not finite"
RUN_FAILED = "the model run failed"
NOT_CHOSEN = "choosing the next token failed"
NO_TOKEN = "no token is allowed"

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)


class Failure(NamedTuple):
    """How a sequence ends that cannot go on. ``message`` is for the caller."""

    outcome: Outcome
    message: str


def failure_of(error: Exception) -> Failure:
    """What ``error``, raised while a token was chosen, means for the sequence. Logs a fault."""
    if isinstance(error, ConstraintError):
        return Failure(Outcome.UNSATISFIABLE, str(error))
    log.error("the next token could not be chosen", exc_info=error)
    return Failure(Outcome.FAILED, NOT_CHOSEN)


class BatchResult(NamedTuple, Generic[T, R]):
    """``items`` that ran together. ``result`` is None if the run failed."""

    items: Sequence[T]
    result: R | None


def run_with_isolation(
    items: Sequence[T],
    run: Callable[[Sequence[T]], R],
    label: str,
    is_wanted: Callable[[T], bool] = lambda _: True,
) -> Iterator[BatchResult[T, R]]:
    """Runs ``items`` together and, if that raises, each alone, to find the failing requests.

    Runs are lazy: the next one begins when the next result is asked for, so a result may use
    memory that the next run overwrites. ``run`` may be repeated after it raised.

    Args:
        items: at least one.
        run: may raise anything.
        label: of the run, for the log.
        is_wanted: asked before an item runs alone: it may have ended meanwhile.
    """
    try:
        result = run(items)
    except Exception:
        if len(items) == 1:
            log.exception("%s failed", label)
            yield BatchResult(items, None)
            return
        log.warning("%s failed for a batch of %d: each alone", label, len(items), exc_info=True)
    else:
        yield BatchResult(items, result)
        return
    for item in items:
        if is_wanted(item):
            yield from run_with_isolation([item], run, label)
