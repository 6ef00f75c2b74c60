"""A run that fails is tried again item by item, so that only the guilty ones fail."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)


class Attempt(NamedTuple, Generic[T, R]):
    """``items`` that ran together. ``result`` is None if their run failed."""

    items: Sequence[T]
    result: R | None


def run_with_isolation(
    items: Sequence[T],
    run: Callable[[Sequence[T]], R],
    label: str,
    is_wanted: Callable[[T], bool] = lambda _: True,
) -> Iterator[Attempt[T, R]]:
    """Runs ``items`` together and, if that raises, each alone.

    The next run begins when the next attempt is asked for: a result may live until then.
    What ``run`` changed before it raised must do no harm when it runs again.

    Args:
        items: at least one.
        run: raises what it likes.
        label: of the run, for the log.
        is_wanted: asked before an item runs alone: it may have ended with another.
    """
    try:
        result = run(items)
    except Exception:
        if len(items) == 1:
            log.exception("%s failed", label)
            yield Attempt(items, None)
            return
        log.warning("%s failed for %d at once: each alone", label, len(items), exc_info=True)
    else:
        yield Attempt(items, result)
        return
    for item in items:
        if is_wanted(item):
            yield from run_with_isolation([item], run, label)
