"""Servers side by side, their clients on the same cores."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from loadtest.compare import figures
from loadtest.compare.contestants import Level
from loadtest.compare.errors import BadAnswerError, WorkerError
from loadtest.compare.figures import Measured
from loadtest.compare.loads import FLOOD_FACTOR, STEADY_PART, Load, Pace, Requests
from loadtest.compare.server_runner import ServerRunner, Timing
from loadtest.statistics import Summary
from loadtest.tasks import Task

WARMUP_SECONDS = 1.0
TRIAL_PART = 0.5
"""Of the duration: how long each layout is tried, which also warms it up."""

Metric = Callable[[Summary], float | None]
Say = Callable[[str], None]


def _inverse(name: str, percentile: str) -> Metric:
    """More is better, so of seconds it is one over them."""

    def metric(summary: Summary) -> float | None:
        seconds: float | None = getattr(getattr(summary, f"{name}_seconds"), percentile)
        return 1.0 / seconds if seconds else None

    return metric


def metrics(load: Load) -> dict[str, Metric]:
    """What of a run goes into the report. More than can be answered has no fair latency."""
    rates: dict[Task, dict[str, Metric]] = {
        Task.GENERATE: {"tokens/s": lambda summary: summary.output_tokens_per_second},
        Task.TRANSLATE: {"tokens/s": lambda summary: summary.output_tokens_per_second},
        Task.EMBED: {"requests/s": lambda summary: summary.requests_per_second},
    }
    latencies = {
        "1 / seconds to answer, p50": _inverse("latency", "p50"),
        "1 / seconds to answer, p99": _inverse("latency", "p99"),
    }
    if load.task == Task.GENERATE:
        latencies["1 / seconds to first token, p50"] = _inverse("first_token", "p50")
    throughput = rates[load.task]
    return {
        Pace.CLOSED: {**throughput, **latencies},
        Pace.FLOOD: throughput,
        Pace.STEADY: latencies,
    }[load.pace]


def estimate_seconds(
    loads: Sequence[Load], layouts: Sequence[int], rounds: int, duration_seconds: float
) -> float:
    """How long the runs take, without starting the servers. ``layouts``: of each of them."""
    total = 0.0
    for load in loads:
        once = WARMUP_SECONDS + 1.5 * load.seconds_to_answer
        total += len(layouts) * rounds * (once + duration_seconds)
        total += sum(layouts) * (once + TRIAL_PART * duration_seconds)
    return total


class ServerComparison:
    """Measures loads, one after the other.

    Args:
        ours: by precision.
        requests_of: a load's requests for a seed.
    """

    def __init__(
        self,
        ours: Mapping[str, ServerRunner],
        peers: Sequence[ServerRunner],
        requests_of: Callable[[Load, int], Requests],
        rounds: int,
        duration_seconds: float,
        say: Say,
    ) -> None:
        self._ours = ours
        self._peers = peers
        self._runners = [*ours.values(), *peers]
        self._requests_of = requests_of
        self._rounds = rounds
        self._timing = Timing(warmup_seconds=WARMUP_SECONDS, duration_seconds=duration_seconds)
        self._say = say
        self._best_peer_rate: float | None = None
        self._seeds = iter(range(1_000_000))

    def rows(self, load: Load) -> list[dict[str, Any]]:
        """One for each precision of ours and each metric."""
        reasons: dict[str, str] = {}
        trials = self._try_layouts(load, reasons)
        rate = self._rate(load, trials)
        rounds = self._measure(
            load, {name: best for name, (best, _) in trials.items()}, rate, reasons
        )
        for runner in self._runners:
            runner.forget(load.clients)
        self._note_best_peer(rounds, reasons)
        found: list[dict[str, Any]] = []
        for precision, mine in self._ours.items():
            for name, metric in metrics(load).items():
                measured = {
                    runner.name: _measured(
                        metric, rounds[runner.name], trials, runner.name, reasons
                    )
                    for runner in (mine, *self._peers)
                }
                about = {
                    "task": load.task.value,
                    "level": Level.SERVER.value,
                    "work": load.label,
                    "precision": precision,
                    "clients": load.clients,
                    "metric": name,
                    "requests_per_second_sent": rate if load.pace == Pace.STEADY else None,
                }
                own = measured.pop(mine.name)
                found.append(figures.row(about, own, measured, None))
        return found

    def close(self) -> None:
        for runner in self._runners:
            runner.close()

    def _try_layouts(self, load: Load, reasons: dict[str, str]) -> dict[str, tuple[str, float]]:
        """By name, the layout that answers most requests a second, and how many."""
        timing = Timing(
            warmup_seconds=WARMUP_SECONDS,
            duration_seconds=TRIAL_PART * self._timing.duration_seconds,
        )
        best: dict[str, tuple[str, float]] = {}
        for runner in self._runners:
            for layout in runner.layouts:
                requests = self._requests_of(load, next(self._seeds))
                try:
                    # A closed loop, whatever the pace: it finds out what can be done.
                    found = runner.run(layout, load, requests, None, timing)
                except (WorkerError, BadAnswerError) as error:
                    self._say(f"{runner.name} {layout}: {error}")
                    reasons[runner.name] = str(error)
                    continue
                if runner.name not in best or found.requests_per_second > best[runner.name][1]:
                    best[runner.name] = (layout, found.requests_per_second)
            if runner.name in best:
                reasons.pop(runner.name, None)
            else:
                reasons.setdefault(runner.name, runner.reason)
        return best

    def _rate(self, load: Load, trials: Mapping[str, tuple[str, float]]) -> float | None:
        """Requests per second to send, in an open loop."""
        if load.pace == Pace.CLOSED or not trials:
            return None
        if load.pace == Pace.FLOOD:
            return FLOOD_FACTOR * max(rate for _, rate in trials.values()) or None
        peers = [trials[runner.name][1] for runner in self._peers if runner.name in trials]
        capacity = self._best_peer_rate or max(peers or [rate for _, rate in trials.values()])
        return STEADY_PART * capacity or None

    def _measure(
        self,
        load: Load,
        layouts: Mapping[str, str],
        rate: float | None,
        reasons: dict[str, str],
    ) -> dict[str, list[Summary]]:
        rounds: dict[str, list[Summary]] = {runner.name: [] for runner in self._runners}
        for number in range(self._rounds):
            seed = next(self._seeds)
            cut = number % len(self._runners)
            for runner in [*self._runners[cut:], *self._runners[:cut]]:
                if runner.name in reasons:
                    continue
                # The same requests for everybody; none of them was sent before.
                requests = self._requests_of(load, seed)
                try:
                    found = runner.run(layouts[runner.name], load, requests, rate, self._timing)
                    rounds[runner.name].append(found)
                except (WorkerError, BadAnswerError) as error:
                    self._say(f"{runner.name}: {error}")
                    reasons[runner.name] = str(error)
        return rounds

    def _note_best_peer(
        self, rounds: Mapping[str, list[Summary]], reasons: Mapping[str, str]
    ) -> None:
        """What the steady load that follows is sent at."""
        rates = [
            median(one.requests_per_second for one in rounds[runner.name])
            for runner in self._peers
            if runner.name not in reasons
        ]
        self._best_peer_rate = max(rates, default=None)


def _measured(
    metric: Metric,
    summaries: Sequence[Summary],
    trials: Mapping[str, tuple[str, float]],
    name: str,
    reasons: Mapping[str, str],
) -> Measured:
    if name in reasons:
        return Measured(reason=reasons[name])
    values = [metric(summary) for summary in summaries]
    if any(value is None or value <= 0 for value in values):
        return Measured(reason="nothing was answered within the duration: measure for longer")
    return Measured(
        rates=tuple(value for value in values if value is not None), layout=trials[name][0]
    )
