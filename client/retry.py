"""Retries of refused calls."""

import random
from dataclasses import dataclass
from typing import TypedDict

import grpc
from tenacity import RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.retry import retry_base
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from client.errors import TriuneError

TRANSIENT = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE})
"""Statuses after which the same request may succeed: the server did no work for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Number of attempts of a refused call, the first included, and the backoff between them.

    The backoff is exponential: it doubles up to ``longest_seconds``, with jitter: a random factor
    in [0.5, 1). It begins with the delay of the server's RetryInfo, which is also the shortest, or
    else with ``initial_seconds``.
    """

    attempts: int = 1
    initial_seconds: float = 0.1
    longest_seconds: float = 5.0


class Controls(TypedDict):
    """Arguments of ``tenacity.Retrying`` and ``tenacity.AsyncRetrying``."""

    retry: retry_base
    stop: stop_base
    wait: wait_base
    reraise: bool


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed on a retry."""
    return isinstance(error, TriuneError) and error.code in TRANSIENT


class _Wait(wait_base):
    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait after the attempt of ``retry_state``."""
        error = retry_state.outcome.exception() if retry_state.outcome else None
        told = error.retry_delay_seconds if isinstance(error, TriuneError) else None
        first = self._policy.initial_seconds if told is None else told
        doubled = first * 2.0 ** (retry_state.attempt_number - 1)
        backoff = min(doubled, self._policy.longest_seconds) * random.uniform(0.5, 1.0)
        return max(backoff, told or 0.0)


def controls(policy: RetryPolicy) -> Controls:
    """The policy in tenacity's terms. The last attempt's error is raised."""
    return Controls(
        retry=retry_if_exception(is_transient),
        stop=stop_after_attempt(policy.attempts),
        wait=_Wait(policy),
        reraise=True,
    )
