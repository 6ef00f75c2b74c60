"""The result of running a load against a server, and the metrics of a result. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest import driver
from loadtest.compare.loads import ArrivalProcess, Load
from loadtest.statistics import OK, Sample, Summary
from loadtest.tasks import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTiming:
    """Durations of one run."""

    warmup_seconds: float
    duration_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of one run.

    ``responses_per_second``: each response counts evenly over the time it took, so that batches
    of responses at the window's edges do not distort the rate. ``client_cores``: cores that the
    clients used. ``other_cores``: cores used by neither clients nor server.
    """

    summary: Summary
    responses_per_second: float
    client_cores: float
    other_cores: float


def responses_per_second(samples: Sequence[Sample], window: driver.Window) -> float:
    """Sums, over responses, the share of their duration that lies in the window."""
    shares = 0.0
    for sample in samples:
        begin = max(sample.sent_seconds, window.start_seconds)
        end = min(sample.finished_seconds, window.end_seconds)
        if sample.status == OK and end > begin:
            shares += (end - begin) / (sample.finished_seconds - sample.sent_seconds)
    return shares / window.duration_seconds


Metric = Callable[[RunResult], float | None]


def _inverse(name: str, percentile: str) -> Metric:
    """One over a latency, so that more is better in all metrics."""

    def metric(ran: RunResult) -> float | None:
        seconds: float | None = getattr(getattr(ran.summary, f"{name}_seconds"), percentile)
        return 1.0 / seconds if seconds else None

    return metric


def _tokens_per_second(ran: RunResult) -> float:
    """For unary responses: the mean number of tokens times the rate of responses."""
    summary = ran.summary
    done = summary.requests - sum(summary.errors.values())
    return ran.responses_per_second * summary.output_tokens / done if done else 0.0


def metrics(load: Load) -> dict[str, Metric]:
    """The metrics of a load. Latency under overload depends on the queue: it is left out."""
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
