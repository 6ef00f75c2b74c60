"""How jobs ended and what they cost: the same for every call."""

import time
from collections.abc import Sequence

from protos.triune.v1 import common_pb2
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import Completion, JobUpdate
from server.errors import DeadlineError, InternalError, InvalidArgumentError, ServeError


def failure_of(end: Completion) -> ServeError | None:
    """The error that a caller gets for an outcome that is none of success."""
    match end.outcome:
        case Outcome.FAILED:
            return InternalError(end.failure)
        case Outcome.UNSATISFIABLE:
            return InvalidArgumentError("decoding", end.failure)
        case Outcome.DEADLINE:
            return DeadlineError()
        case _:
            return None


def end_of(progress: JobUpdate) -> Completion:
    """The end of a job that has one piece of updates. Raises ``ServeError`` if it failed."""
    if progress.completion is None:
        raise InternalError
    failure = failure_of(progress.completion)
    if failure is not None:
        raise failure
    return progress.completion


def timing(
    ends: Sequence[Completion], tokenize_seconds: float, started: float
) -> common_pb2.Timing:
    """Of a request that came at ``started`` (``time.monotonic``): each phase's longest."""
    return common_pb2.Timing(
        queue_seconds=max(end.queue_seconds for end in ends),
        tokenize_seconds=tokenize_seconds,
        prefill_seconds=max(end.prefill_seconds for end in ends),
        decode_seconds=max(end.decode_seconds for end in ends),
        total_seconds=time.monotonic() - started,
    )
