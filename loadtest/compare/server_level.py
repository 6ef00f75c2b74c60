"""Compares servers, with their clients on the same cores."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from loadtest.compare import measurements
from loadtest.compare.candidates import Level
from loadtest.compare.errors import InvalidResultError, WorkerError
from loadtest.compare.loads import FLOOD_FACTOR, STEADY_SHARE, ArrivalProcess, Load, Requests
from loadtest.compare.measurements import Measurement
from loadtest.compare.our_servers import NATIVE, OurSide
from loadtest.compare.server_metrics import Metric, RunResult, RunTiming, metrics
from loadtest.compare.server_runner import ServerRunner
from loadtest.compare.time_budget import TimeBudget

WARMUP_SECONDS = 1.0
TRIAL_SHARE = 0.5
"""Duration of the trial of a layout, which also warms it up, relative to that of a run."""

NOTICEABLE_CORES = 0.1

Log = Callable[[str], None]


def load_seconds(load: Load, layouts: Sequence[int], rounds: int, duration_seconds: float) -> float:
    """Approximate duration of all runs of a load.

    Args:
        layouts: number of layouts of each server.
    """
    once = WARMUP_SECONDS + 1.5 * load.seconds_per_response
    measured = len(layouts) * rounds * (once + load.run_seconds(duration_seconds))
    return measured + sum(layouts) * (once + TRIAL_SHARE * duration_seconds)


class ServerComparison:
    """Runs loads against our servers and the peers', one load after the other.

    Args:
        ours: our server, by precision and protocol.
        requests_of: returns a load's requests for a seed.
        rounds: of each load, at most.
        duration_seconds: of a run, at least (``Load.run_seconds``).
    """

    def __init__(
        self,
        ours: Mapping[OurSide, ServerRunner],
        peers: Sequence[ServerRunner],
        requests_of: Callable[[Load, int], Requests],
        rounds: int,
        duration_seconds: float,
        time_budget: TimeBudget,
        log: Log,
    ) -> None:
        self._ours = ours
        self._peers = peers
        self._runners = [*ours.values(), *peers]
        self._requests_of = requests_of
        self._rounds = rounds
        self._duration_seconds = duration_seconds
        self._time_budget = time_budget
        self._log = log
        self._best_peer_rate: float | None = None
        self._seeds = iter(range(1_000_000))

    def rounds(self, load: Load, until: float = math.inf) -> Iterator[list[dict[str, Any]]]:
        """Yields after each round the rows so far: one for each of ours and each metric.

        Args:
            until: a time of the budget's clock. The first round always runs; a later one only if
                it is expected to end by then.
        """
        reasons: dict[str, str] = {}
        trials = self._try_layouts(load, reasons)
        rate = self._rate(load, trials)
        layouts = {name: best for name, (best, _) in trials.items()}
        rounds: dict[str, list[RunResult]] = {runner.name: [] for runner in self._runners}
        seconds = 0.0
        for number in range(self._rounds):
            if number and not self._time_budget.has_time(seconds, until):
                break
            started = self._time_budget.now()
            self._round(number, load, layouts, rate, rounds, reasons)
            seconds = self._time_budget.now() - started
            yield self._rows(load, rate, rounds, trials, reasons)
        for runner in self._runners:
            runner.stop_for(load.clients)
        self._note_best_peer(rounds, reasons)

    def _rows(
        self,
        load: Load,
        rate: float | None,
        rounds: Mapping[str, Sequence[RunResult]],
        trials: Mapping[str, tuple[str, float]],
        reasons: Mapping[str, str],
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for side, mine in self._ours.items():
            for name, metric in metrics(load).items():
                measured = {
                    runner.name: _measured(
                        metric, rounds[runner.name], trials, runner.name, reasons
                    )
                    for runner in (mine, *self._peers)
                }
                own = measured.pop(mine.name)
                about = {
                    "task": load.task.value,
                    "level": Level.SERVER.value,
                    "work": load.label,
                    "precision": side.precision,
                    "protocol": side.protocol,
                    "protocols": {
                        "ours": mine.protocol.value,
                        **{peer.name: peer.protocol.value for peer in self._peers},
                    },
                    "clients": load.clients,
                    "metric": name,
                    "requests_per_second_sent": rate
                    if load.arrival_process == ArrivalProcess.STEADY
                    else None,
                    "ratio_to_native": self._ratio_to_native(side, own, metric, rounds),
                }
                found.append(measurements.row(about, own, measured, None))
        return found

    def _ratio_to_native(
        self,
        side: OurSide,
        own: Measurement,
        metric: Metric,
        rounds: Mapping[str, Sequence[RunResult]],
    ) -> float | None:
        """The median ratio of a round to that of our own protocol; ``None`` without both."""
        native = self._ours.get(dataclasses.replace(side, protocol=NATIVE))
        if native is None or side.protocol == NATIVE or own.reason:
            return None
        rates = [metric(run) for run in rounds[native.name]]
        ratios = [mine / rate for mine, rate in zip(own.rates, rates, strict=False) if rate]
        return median(ratios) if ratios else None

    def close(self) -> None:
        for runner in self._runners:
            runner.close()

    def _try_layouts(self, load: Load, reasons: dict[str, str]) -> dict[str, tuple[str, float]]:
        """By server, the layout with the most responses per second, and that rate."""
        timing = RunTiming(
            warmup_seconds=WARMUP_SECONDS,
            duration_seconds=TRIAL_SHARE * self._duration_seconds,
        )
        best: dict[str, tuple[str, float]] = {}
        requests = self._requests_of(load, next(self._seeds))
        for runner in self._runners:
            layouts = runner.layouts
            if (
                load.arrival_process == ArrivalProcess.CLOSED
                and len(layouts) == 1
                and runner.is_warm(layouts[0], load)
            ):
                best[runner.name] = (layouts[0], 0.0)
                continue
            for layout in layouts:
                try:
                    # Always a closed loop: it measures the capacity.
                    found = runner.run(layout, load, requests, None, timing)
                except (WorkerError, InvalidResultError) as error:
                    self._log(f"{runner.name} {layout}: {error}")
                    reasons[runner.name] = str(error)
                    continue
                self._log_result(load, f"{runner.name} {layout}".rstrip(), "trial", found)
                if runner.name not in best or found.responses_per_second > best[runner.name][1]:
                    best[runner.name] = (layout, found.responses_per_second)
            if runner.name in best:
                reasons.pop(runner.name, None)
            else:
                reasons.setdefault(runner.name, runner.reason)
        return best

    def _rate(self, load: Load, trials: Mapping[str, tuple[str, float]]) -> float | None:
        """Requests per second of an open loop; ``None`` for a closed loop."""
        if load.arrival_process == ArrivalProcess.CLOSED or not trials:
            return None
        if load.arrival_process == ArrivalProcess.FLOOD:
            return FLOOD_FACTOR * max(rate for _, rate in trials.values()) or None
        peers = [trials[runner.name][1] for runner in self._peers if runner.name in trials]
        capacity = self._best_peer_rate or max(peers or [rate for _, rate in trials.values()])
        return STEADY_SHARE * capacity or None

    def _round(
        self,
        number: int,
        load: Load,
        layouts: Mapping[str, str],
        rate: float | None,
        rounds: Mapping[str, list[RunResult]],
        reasons: dict[str, str],
    ) -> None:
        """Runs each server once; each round starts with another one."""
        # All servers get the same requests, which are new in each round.
        requests = self._requests_of(load, next(self._seeds))
        timing = RunTiming(
            warmup_seconds=WARMUP_SECONDS,
            duration_seconds=load.run_seconds(self._duration_seconds),
        )
        cut = number % len(self._runners)
        for runner in [*self._runners[cut:], *self._runners[:cut]]:
            if runner.name in reasons:
                continue
            try:
                found = runner.run(layouts[runner.name], load, requests, rate, timing)
                rounds[runner.name].append(found)
                self._log_result(load, runner.name, f"round {number + 1}", found)
            except (WorkerError, InvalidResultError) as error:
                self._log(f"{runner.name}: {error}")
                reasons[runner.name] = str(error)

    def _log_result(self, load: Load, name: str, phase: str, found: RunResult) -> None:
        values_by_metric = {metric: of(found) for metric, of in metrics(load).items()}
        values = ", ".join(
            f"{value or 0:.4g} {metric}" for metric, value in values_by_metric.items()
        )
        disturbed = ""
        if found.other_cores > NOTICEABLE_CORES:
            disturbed = f"; other processes used {found.other_cores:.1f} cores"
        self._log(f"{load.label}, {load.clients} clients, {phase}: {name}: {values}{disturbed}")

    def _note_best_peer(
        self, rounds: Mapping[str, Sequence[RunResult]], reasons: Mapping[str, str]
    ) -> None:
        """Keeps the best peer's rate, from which the following steady load derives its own."""
        rates = [
            median(result.responses_per_second for result in rounds[runner.name])
            for runner in self._peers
            if runner.name not in reasons
        ]
        self._best_peer_rate = max(rates, default=None)


def _measured(
    metric: Metric,
    runs: Sequence[RunResult],
    trials: Mapping[str, tuple[str, float]],
    name: str,
    reasons: Mapping[str, str],
) -> Measurement:
    if name in reasons:
        return Measurement(reason=reasons[name])
    values = [metric(run) for run in runs]
    if any(value is None or value <= 0 for value in values):
        return Measurement(reason="no response arrived within the duration: use a longer one")
    return Measurement(
        rates=tuple(value for value in values if value is not None),
        layout=trials[name][0],
        extra={
            "client_cores": median(run.client_cores for run in runs),
            "other_cores": max(run.other_cores for run in runs),
        },
    )
