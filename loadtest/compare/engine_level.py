"""Compares engines at one precision, without a network."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from loadtest.compare.candidates import Candidate, Level
from loadtest.compare.engine_runner import EngineRunner
from loadtest.compare.errors import InvalidResultError, WorkerError
from loadtest.compare.fidelity import Fidelity, describe
from loadtest.compare.fidelity_checks import CHECKS
from loadtest.compare.measurements import Measurement
from loadtest.compare.paths import Paths
from loadtest.compare.time_budget import TimeBudget
from loadtest.compare.workloads import Workload, WorkloadKind
from loadtest.tasks import Task

MIN_TURN_SECONDS = 0.25

Log = Callable[[str], None]


class EngineComparison:
    """Our engine and its peers at one precision.

    Before speed, the fidelity of each is measured. The reference is our engine in fp32.
    """

    def __init__(
        self,
        task: Task,
        level: Level,
        precision: str,
        ours: Candidate,
        peers: Sequence[Candidate],
        paths: Paths,
        threads: int,
        rounds: int,
        log: Log,
    ) -> None:
        self._rounds, self._log = rounds, log
        self._runners: list[EngineRunner] = []
        try:
            for candidate in (ours, *peers):
                log(f"loading {candidate.name} {precision}")
                self._runners.append(EngineRunner(candidate, task, precision, paths, threads))
                log(f"{candidate.name} {precision}: {self._runners[-1].status}")
            self._fidelity = self._measure_fidelity(ours, task, level, paths, threads)
        except BaseException:
            self.close()
            raise

    @property
    def versions(self) -> dict[str, str]:
        return {runner.name: runner.version for runner in self._runners}

    def measure(
        self, workload: Workload, time_budget: TimeBudget
    ) -> tuple[Measurement, dict[str, Measurement]]:
        """Our measurement, and those of the peers by name."""
        until = time_budget.begin_item()
        found = measure(workload, self._runners, self._rounds, time_budget, until, self._log)
        for name, fidelity in self._fidelity.items():
            found[name] = replace(found[name], extra={"fidelity": fidelity})
        return found.pop(self._runners[0].name), found

    def close(self) -> None:
        for runner in self._runners:
            runner.close()

    def _measure_fidelity(
        self, ours: Candidate, task: Task, level: Level, paths: Paths, threads: int
    ) -> dict[str, Fidelity]:
        """By candidate; those that cannot be compared with fp32 are left out."""
        if (task, level) not in CHECKS:
            return {}
        reference = EngineRunner(ours, task, "fp32", paths, threads)
        try:
            check = CHECKS[task, level](reference)
        except (WorkerError, LookupError) as error:
            self._log(f"no fidelity: {error}")
            return {}
        finally:
            reference.close()
        measured: dict[str, Fidelity] = {}
        for runner in self._runners:
            try:
                measured[runner.name] = check.of(runner)
            except (WorkerError, LookupError) as error:
                self._log(f"{runner.name}: no fidelity: {error}")
            else:
                self._log(f"{runner.name}: {describe(measured[runner.name])}")
        return measured


def measure(
    workload: Workload,
    runners: Sequence[EngineRunner],
    rounds: int,
    time_budget: TimeBudget,
    until: float,
    log: Log,
) -> dict[str, Measurement]:
    """Measurements by candidate. A candidate that fails gets a reason; the others continue.

    First each candidate runs in each layout, to warm up and to find its best layout. Then the
    candidates take turns, and each round starts with another one. A turn repeats short work.

    Args:
        until: a time of the budget's clock. The first round always runs; a later one only if it
            is expected to end by then.
    """
    reasons = {runner.name: runner.reason for runner in runners if runner.reason}
    seeds = itertools.count()
    layouts = _best_layouts(workload, runners, reasons, seeds, log)
    rates: dict[str, list[float]] = {name: [] for name in layouts}
    seconds = 0.0
    for number in range(rounds):
        if number and not time_budget.has_time(seconds, until):
            break
        started = time_budget.now()
        for runner in _rotate(runners, number):
            if runner.name in reasons:
                continue
            layout = layouts[runner.name]
            try:
                rate = _rate(runner, layout, workload, seeds)
            except (WorkerError, InvalidResultError) as error:
                reasons[runner.name] = str(error)
                continue
            rates[runner.name].append(rate)
            log(_message(workload, runner, layout, f"round {number + 1}", rate))
        seconds = time_budget.now() - started
    return {
        runner.name: Measurement(reason=reasons[runner.name])
        if runner.name in reasons
        else Measurement(rates=tuple(rates[runner.name]), layout=layouts[runner.name])
        for runner in runners
    }


def _best_layouts(
    workload: Workload,
    runners: Sequence[EngineRunner],
    reasons: dict[str, str],
    seeds: Iterator[int],
    log: Log,
) -> dict[str, str]:
    """The fastest layout by candidate; a candidate without one gets a reason."""
    best: dict[str, str] = {}
    for runner in runners:
        if runner.reason:
            continue
        rates: dict[str, float] = {}
        layouts = runner.layouts(workload)
        for layout in layouts:
            try:
                rates[layout] = runner.run(layout, workload, next(seeds))
                log(_message(workload, runner, layout, "trial", rates[layout]))
                # The first run only warms up. Mixed workloads are long: one run must do.
                if len(layouts) > 1 and workload.kind != WorkloadKind.MIXED:
                    rates[layout] = _rate(runner, layout, workload, seeds)
            except (WorkerError, InvalidResultError) as error:
                reasons[runner.name] = str(error)
        if rates:
            best[runner.name] = max(rates, key=lambda name: rates[name])
            reasons.pop(runner.name, None)
    return best


def _rate(runner: EngineRunner, layout: str, workload: Workload, seeds: Iterator[int]) -> float:
    """The median rate of a turn, which repeats short work.

    Otherwise, what is measured of short work is how fast the weights come back to the caches.
    """
    rates: list[float] = []
    until = time.monotonic() + MIN_TURN_SECONDS
    while not rates or time.monotonic() < until:
        rates.append(runner.run(layout, workload, next(seeds)))
    return median(rates)


def _message(workload: Workload, runner: EngineRunner, layout: str, phase: str, rate: float) -> str:
    name = f"{runner.name} {layout}".rstrip()
    about = f"{workload.label}, batch {workload.batch}, {phase}: {name}"
    return f"{about}: {rate:.4g} {workload.metric}"


def _rotate(runners: Sequence[EngineRunner], by: int) -> list[EngineRunner]:
    cut = by % len(runners)
    return [*runners[cut:], *runners[:cut]]
