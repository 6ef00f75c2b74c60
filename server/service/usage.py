"""Usage and timing of a call, and the error for each failed job."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import Completion, EncoderOutput, JobUpdate
from server.errors import (
    RETRY_SECONDS,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    Limit,
    OverloadedError,
    ServeError,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. ``reused_tokens``: input tokens found in the prefix cache.

    ``reasoning_tokens``: output tokens before the answer, if reasoning is separated from it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reused_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def total(cls, usages: Iterable["Usage"]) -> "Usage":
        """The sum over several outputs."""
        input_tokens = output_tokens = reused_tokens = reasoning_tokens = 0
        for usage in usages:
            input_tokens += usage.input_tokens
            output_tokens += usage.output_tokens
            reused_tokens += usage.reused_tokens
            reasoning_tokens += usage.reasoning_tokens
        return cls(input_tokens, output_tokens, reused_tokens, reasoning_tokens)


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of a call's phases; with several inputs, the longest of each phase."""

    queue_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    total_seconds: float = 0.0

    @classmethod
    def of(
        cls, completions: Sequence[Completion], tokenize_seconds: float, started: float
    ) -> "Timing":
        """The timing of a call that arrived at ``started`` (seconds of ``time.monotonic``)."""
        queue = prefill = decode = 0.0
        for done in completions:
            queue = max(queue, done.queue_seconds)
            prefill = max(prefill, done.prefill_seconds)
            decode = max(decode, done.decode_seconds)
        return cls(queue, tokenize_seconds, prefill, decode, time.monotonic() - started)

    @classmethod
    def longest(cls, timings: Iterable["Timing"]) -> "Timing":
        """The longest of each phase."""
        return cls(*map(max, zip(*map(astuple, timings), strict=True)))


def error_of(completion: Completion) -> ServeError | None:
    """The error of a failed job; ``None`` if the job succeeded or was cancelled."""
    match completion.outcome:
        case Outcome.OUT_OF_MEMORY:
            return OverloadedError(completion.failure, RETRY_SECONDS, Limit.DEVICE_MEMORY)
        case Outcome.FAILED:
            return InternalError(completion.failure)
        case Outcome.UNSATISFIABLE:
            return InvalidArgumentError("grammar", completion.failure)
        case Outcome.NO_TOKEN:
            return InvalidArgumentError("decoding", completion.failure)
        case Outcome.DEADLINE:
            return DeadlineError()
        case _:
            return None


def completion_of(update: JobUpdate) -> Completion:
    """The completion of a job with a single update. Raises ``ServeError`` if the job failed."""
    if update.completion is None:
        raise InternalError
    error = error_of(update.completion)
    if error is not None:
        raise error
    return update.completion


def encoder_output_of(update: JobUpdate) -> EncoderOutput:
    """The output of an encoder's job that succeeded."""
    if update.encoded is None:
        raise InternalError
    return update.encoded
