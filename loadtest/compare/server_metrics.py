"""Runs of a load against a server: what is known of one, and the figures that it gives. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest import driver
from loadtest.compare.loads import ArrivalProcess, Load
from loadtest.statistics import OK, Sample, Summary
from loadtest.tasks import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTiming:
    """Of one run, in seconds."""

    warmup_seconds: float
    duration_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """One run.

    ``responses_per_second``: each answer spread evenly over the time that it took, so that answers
    that come together in batches do not make the rate one of batches. ``client_cores`` and
    ``other_cores``: how many cores the clients took, and whoever else has no part in this.
    """

    summary: Summary
    responses_per_second: float
    client_cores: float
    other_cores: float


def responses_per_second(samples: Sequence[Sample], window: driver.Window) -> float:
    """Of each answer, the part of the time since it was asked that lies in the window."""
    parts = 0.0
    for sample in samples:
        begin = max(sample.sent_seconds, window.start_seconds)
        end = min(sample.finished_seconds, window.end_seconds)
        if sample.status == OK and end > begin:
            parts += (end - begin) / (sample.finished_seconds - sample.sent_seconds)
    return parts / window.duration_seconds


Metric = Callable[[RunResult], float | None]


def _inverse(name: str, percentile: str) -> Metric:
    """More is better, so of seconds it is one over them."""

    def metric(ran: RunResult) -> float | None:
        seconds: float | None = getattr(getattr(ran.summary, f"{name}_seconds"), percentile)
        return 1.0 / seconds if seconds else None

    return metric


def _tokens_per_second(ran: RunResult) -> float:
    """Of answers that come whole, those of the mean answer."""
    summary = ran.summary
    done = summary.requests - sum(summary.errors.values())
    return ran.responses_per_second * summary.output_tokens / done if done else 0.0


def metrics(load: Load) -> dict[str, Metric]:
    """What of a run goes into the report. More than can be answered has no fair latency."""
    rates: dict[Task, dict[str, Metric]] = {
        Task.GENERATE: {"tokens/s": lambda ran: ran.summary.output_tokens_per_second},
        Task.TRANSLATE: {"tokens/s": _tokens_per_second},
        Task.EMBED: {"requests/s": lambda ran: ran.responses_per_second},
    }
    latencies = {
        "1 / seconds to answer, p50": _inverse("latency", "p50"),
        "1 / seconds to answer, p99": _inverse("latency", "p99"),
    }
    if load.task == Task.GENERATE:
        latencies["1 / seconds to first token, p50"] = _inverse("first_token", "p50")
    throughput = rates[load.task]
    return {
        ArrivalProcess.CLOSED: {**throughput, **latencies},
        ArrivalProcess.FLOOD: throughput,
        ArrivalProcess.STEADY: latencies,
    }[load.arrival_process]
