"""Everybody loads, then takes turns, work by work."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.compare import figures
from loadtest.compare.contestants import ROOT, Contestant
from loadtest.compare.errors import BadAnswerError, WorkerError
from loadtest.compare.figures import Measured
from loadtest.compare.timetable import Timetable
from loadtest.compare.worker import Worker
from loadtest.compare.works import Kind, Work
from loadtest.tasks import Task

LOAD_SECONDS = 300.0
RUN_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where environments and models lie, and where logs go; and the threads of everybody."""

    environments: Path
    models: Path
    logs: Path
    threads: int


class Runner:
    """A contestant at one task and precision: a process for each layout.

    One that does not load, or dies, is out: ``reason`` says why, if no layout is left.
    """

    def __init__(self, contestant: Contestant, task: Task, precision: str, places: Places) -> None:
        self.name = contestant.name
        self.reason = ""
        self.version = ""
        self._workers: dict[str, Worker] = {}
        try:
            model = contestant.model(precision, places.models)
            command = contestant.command(places.environments)
        except LookupError as error:
            self.reason = str(error)
            return
        question = {
            "op": "load",
            "task": task.value,
            "model": str(model),
            "precision": precision,
            "threads": places.threads,
        }
        for layout, options in contestant.layouts.items():
            filled = {k: places.threads if v == "threads" else v for k, v in options.items()}
            log = places.logs / f"{self.name}-{precision}-{layout or 'only'}.log".replace(" ", "-")
            worker = None
            try:
                worker = Worker(command, contestant.variables, log, ROOT)
                self._workers[layout] = worker
                answer = worker.ask(question | filled, LOAD_SECONDS)
                self.version = str(answer.get("version", ""))
            except WorkerError as error:
                self._drop(layout, f"does not load: {error}")

    @property
    def about(self) -> str:
        """Its version, or why it is out."""
        return self.reason or self.version

    def measurable(self, work: Work) -> list[str]:
        """Layouts worth trying: one row leaves nothing to share among workers."""
        layouts = list(self._workers)
        return layouts[:1] if work.batch * work.beams == 1 else layouts

    def run(self, layout: str, work: Work, seed: int) -> float:
        """The rate of one run. Raises ``WorkerError`` or ``BadAnswerError``."""
        try:
            answer = self._workers[layout].ask(work.message(seed), RUN_SECONDS)
        except WorkerError as error:
            if not self._workers[layout].is_alive:
                self._drop(layout, f"died in {work.label}, batch {work.batch}: {error}")
            raise
        return figures.rate(work, answer)

    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of the first layout: they do not depend on it. Raises ``LookupError`` without one."""
        if self.reason:
            raise LookupError(self.reason)
        worker = next(iter(self._workers.values()))
        answer = worker.ask({"op": "vectors", "inputs": inputs}, RUN_SECONDS)
        vectors: list[list[float]] = answer["vectors"]
        return vectors

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        return next(iter(self._workers.values())).ask(question, RUN_SECONDS)

    def close(self) -> None:
        for layout in list(self._workers):
            self._workers.pop(layout).close()

    def _drop(self, layout: str, reason: str) -> None:
        worker = self._workers.pop(layout, None)
        if worker is not None:
            worker.kill()
        if not self._workers:
            self.reason = reason


def measure(
    work: Work,
    runners: Sequence[Runner],
    rounds: int,
    timetable: Timetable,
    until: float,
    say: Callable[[str], None],
) -> dict[str, Measured]:
    """By contestant. Whoever fails has a reason; the others go on.

    ``until``: by the timetable's clock; no round begins that would not end by then, but for the
    first.

    First everybody runs in each layout, to warm up and to find the best one. Then they take
    turns, and each round begins with another.
    """
    reasons = {runner.name: runner.reason for runner in runners if runner.reason}
    layouts: dict[str, str] = {}
    seeds = iter(range(1_000_000))
    for runner in runners:
        if runner.reason:
            continue
        tried: dict[str, float] = {}
        candidates = runner.measurable(work)
        for layout in candidates:
            try:
                tried[layout] = runner.run(layout, work, next(seeds))
                say(_told(work, runner, layout, "tried", tried[layout]))
                # The first run was the warm-up; of many rows, not worth the time.
                if len(candidates) > 1 and work.kind != Kind.MIXED:
                    tried[layout] = runner.run(layout, work, next(seeds))
            except (WorkerError, BadAnswerError) as error:
                reasons[runner.name] = str(error)
        if tried:
            layouts[runner.name] = max(tried, key=lambda name: tried[name])
            reasons.pop(runner.name, None)
    rates: dict[str, list[float]] = {name: [] for name in layouts}
    seconds = 0.0
    for number in range(rounds):
        if number and not timetable.has_time(seconds, until):
            break
        begun = timetable.now()
        for runner in _rotated(runners, number):
            if runner.name in reasons:
                continue
            try:
                rate = runner.run(layouts[runner.name], work, next(seeds))
                rates[runner.name].append(rate)
                layout, what = layouts[runner.name], f"round {number + 1}"
                say(_told(work, runner, layout, what, rate))
            except (WorkerError, BadAnswerError) as error:
                reasons[runner.name] = str(error)
        seconds = timetable.now() - begun
    return {
        runner.name: Measured(reason=reasons[runner.name])
        if runner.name in reasons
        else Measured(rates=tuple(rates[runner.name]), layout=layouts[runner.name])
        for runner in runners
    }


def _told(work: Work, runner: Runner, layout: str, what: str, rate: float) -> str:
    name = f"{runner.name} {layout}".rstrip()
    return f"{work.label}, batch {work.batch}, {what}: {name}: {rate:.4g} tokens/s"


def with_cosines(
    found: Mapping[str, Measured], work: Work, runners: Sequence[Runner], reference: Runner
) -> dict[str, Measured]:
    """``found`` with ``min_cosine_to_fp32``: of the work's texts, that of the worst vector with the
    ``reference``'s.
    """
    inputs = work.message(0)["inputs"]
    try:
        exact = reference.vectors(inputs)
    except (WorkerError, LookupError):
        return dict(found)
    result = dict(found)
    for runner in runners:
        if not found[runner.name].reason:
            with contextlib.suppress(WorkerError):
                worst = figures.min_cosine(runner.vectors(inputs), exact)
                extra = {"min_cosine_to_fp32": worst}
                result[runner.name] = replace(found[runner.name], extra=extra)
    return result


def _rotated(runners: Sequence[Runner], by: int) -> list[Runner]:
    cut = by % len(runners)
    return [*runners[cut:], *runners[:cut]]
