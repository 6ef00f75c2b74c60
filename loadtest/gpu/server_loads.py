"""``loadtest run`` in processes of their own, several at a time: clients share no interpreter."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.pool import AsyncResult
from typing import Any, NamedTuple

import uvloop
from rich.console import Console

from client.errors import TriuneError
from loadtest.prompts import LengthRange
from loadtest.run import Plan, UnsuitableModelError
from loadtest.run import run as run_plan
from loadtest.statistics import Summary
from loadtest.tasks import DEFAULTS, Task

TASKS = (Task.GENERATE, Task.TRANSLATE, Task.EMBED)
# A model with random weights never ends a text by itself.
NEW_TOKENS = {Task.GENERATE: 64, Task.TRANSLATE: 32}
REQUEST_SECONDS = 20.0
_SLACK_SECONDS = 20.0


class Load(NamedTuple):
    """A closed loop of clients.

    ``longest``: the longest prompt in tokens; None for the task's own lengths.
    """

    task: Task
    model: str
    clients: int
    seconds: float
    warmup_seconds: float = 1.0
    timeout_seconds: float = REQUEST_SECONDS
    longest: int | None = None


class LoadProcesses:
    """Processes for as many loads at a time as there are tasks."""

    def __init__(self) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(len(TASKS))

    def start(self, target: str, load: Load) -> "AsyncResult[dict[str, Any]]":
        """Starts a load against ``target``; :func:`result_of` waits for it."""
        return self._pool.apply_async(_measure, (target, load))

    def run(self, target: str, loads: Sequence[Load]) -> list[dict[str, Any]]:
        """Runs loads at the same time, and returns the :func:`row` of each."""
        started = [self.start(target, load) for load in loads]
        return [result_of(each, load) for each, load in zip(started, loads, strict=True)]

    def close(self) -> None:
        """Ends the processes, also while a load runs."""
        self._pool.terminate()


def result_of(started: "AsyncResult[dict[str, Any]]", load: Load) -> dict[str, Any]:
    """Waits for a load. Its failure, or no end in time, is a row with a ``reason``."""
    longest = load.warmup_seconds + load.seconds + 2 * load.timeout_seconds + _SLACK_SECONDS
    try:
        return started.get(longest)
    except multiprocessing.TimeoutError:
        return {"reason": f"no end within {longest:g} s"}
    except (TriuneError, UnsuitableModelError, OSError, ValueError) as error:
        return {"reason": str(error)}


def row(summary: Summary) -> dict[str, Any]:
    """What a report has of a run."""
    latency = summary.latency_seconds
    return {
        "requests": summary.requests,
        "errors": summary.errors,
        "seconds": summary.duration_seconds,
        "requests_per_second": summary.requests_per_second,
        "output_tokens_per_second": summary.output_tokens_per_second,
        "input_tokens_per_second": summary.input_tokens_per_second,
        "latency_seconds": {"p50": latency.p50, "p99": latency.p99},
    }


def _measure(target: str, load: Load) -> dict[str, Any]:
    defaults = DEFAULTS[load.task]
    lengths = defaults.lengths
    if load.longest is not None:
        longest = min(lengths.longest, load.longest)
        lengths = LengthRange(min(lengths.shortest, longest), longest)
    plan = Plan(
        target=target,
        task=load.task,
        model=load.model,
        concurrency=load.clients,
        rate=None,
        duration_seconds=load.seconds,
        warmup_seconds=load.warmup_seconds,
        timeout_seconds=load.timeout_seconds,
        seed=0,
        prompts=None,
        lengths=lengths,
        max_new_tokens=NEW_TOKENS.get(load.task),
        ignore_eos=defaults.ignore_eos,
    )
    return row(uvloop.run(run_plan(plan, Console(quiet=True))).summary)
