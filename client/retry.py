"""When failed calls are retried, and after how long."""

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
    """How often a refused call is attempted (first attempt included), and the wait between.

    A RetryInfo of the server sets the wait. Without one the wait is exponential: it doubles from
    ``initial_seconds`` up to ``longest_seconds``, times a random factor in [0.5, 1) so that
    clients that were refused together do not retry together.
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
        if isinstance(error, TriuneError) and error.retry_delay_seconds is not None:
            return error.retry_delay_seconds
        doubled = self._policy.initial_seconds * 2.0 ** (retry_state.attempt_number - 1)
        return min(doubled, self._policy.longest_seconds) * random.uniform(0.5, 1.0)


def controls(policy: RetryPolicy) -> Controls:
    """The policy in tenacity's terms. The last attempt's error is raised."""
    return Controls(
        retry=retry_if_exception(is_transient),
        stop=stop_after_attempt(policy.attempts),
        wait=_Wait(policy),
        reraise=True,
    )
