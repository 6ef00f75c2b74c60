"""When a failed call is tried again, and how long to wait before."""

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
"""Statuses after which the same request may succeed: it was refused before any work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often a call is tried, the first time included.

    The server's RetryInfo decides the wait where it sent one; else the wait doubles from
    ``initial_seconds`` up to ``longest_seconds``, times a random factor in [0.5, 1) so that
    clients that were refused together do not come back together.
    """

    attempts: int = 1
    initial_seconds: float = 0.1
    longest_seconds: float = 5.0


class Controls(TypedDict):
    """What ``tenacity.Retrying`` and ``tenacity.AsyncRetrying`` are both told."""

    retry: retry_base
    stop: stop_base
    wait: wait_base
    reraise: bool


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, TriuneError) and error.code in TRANSIENT


class _Wait(wait_base):
    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait after the attempt that ``retry_state`` describes."""
        error = retry_state.outcome.exception() if retry_state.outcome else None
        if isinstance(error, TriuneError) and error.retry_delay_seconds is not None:
            return error.retry_delay_seconds
        doubled = self._policy.initial_seconds * 2.0 ** (retry_state.attempt_number - 1)
        return min(doubled, self._policy.longest_seconds) * random.uniform(0.5, 1.0)


def controls(policy: RetryPolicy) -> Controls:
    """The policy in tenacity's terms; after the last attempt its own error is raised."""
    return Controls(
        retry=retry_if_exception(is_transient),
        stop=stop_after_attempt(policy.attempts),
        wait=_Wait(policy),
        reraise=True,
    )
