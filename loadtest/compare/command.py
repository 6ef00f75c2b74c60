"""``python -m loadtest compare``: everybody side by side, row by row."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from loadtest.compare import figures, measure
from loadtest.compare.contestants import ENGINE_PEERS, ROOT, Contestant, engine_command, engine_of
from loadtest.compare.floors import floor_rate
from loadtest.compare.measure import Places, Runner
from loadtest.compare.prepare import prepare
from loadtest.compare.report import Report, line, print_table
from loadtest.compare.worker import Worker, WorkerError
from loadtest.compare.works import PRECISIONS, works
from loadtest.tasks import Task


class Level(StrEnum):
    """What of an inference server is compared. Servers as a whole are not compared yet."""

    ENGINE = "engine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What to compare. ``peers``: names; none given is all."""

    task: Task
    level: Level
    peers: tuple[str, ...]
    precisions: tuple[str, ...]
    rounds: int
    quick: bool
    threads: int
    root: Path

    @property
    def places(self) -> Places:
        return Places(
            environments=self.root / "peers",
            models=self.root / "compare",
            logs=self.root / "compare" / "logs",
            threads=self.threads,
        )


def prepare_all(comparison: Comparison) -> bool:
    """Installs and exports what the comparison needs. Returns whether all of it is there."""
    return prepare(comparison.task, _chosen(comparison), comparison.root, _say)


def compare(comparison: Comparison, path: Path) -> bool:
    """Measures, and writes ``path`` after every row. Returns whether we ran everywhere."""
    report = Report(
        path,
        {
            "task": comparison.task.value,
            "level": comparison.level.value,
            "rounds": comparison.rounds,
            "threads": comparison.threads,
            "higher_is_better": True,
        },
    )
    ceilings = _ceilings(comparison.places)
    report.note("ceilings", ceilings)
    for precision in comparison.precisions or PRECISIONS[comparison.task]:
        _compare_engines(comparison, precision, ceilings, report)
    print_table(report.rows)
    return all(not isinstance(row["ours"], str) for row in report.rows)


def _compare_engines(
    comparison: Comparison, precision: str, ceilings: dict[str, Any], report: Report
) -> None:
    task, places = comparison.task, comparison.places
    runners: list[Runner] = []
    try:
        for contestant in (engine_of(task), *_chosen(comparison)):
            runners.append(Runner(contestant, task, precision, places))
            _say(f"{contestant.name} {precision}: {runners[-1].reason or runners[-1].version}")
        report.note(f"versions_{precision}", {runner.name: runner.version for runner in runners})
        for work in works(task, precision, quick=comparison.quick):
            found = measure.measure(work, runners, comparison.rounds)
            mine = found.pop(runners[0].name)
            about = {
                "task": task.value,
                "level": Level.ENGINE.value,
                "work": work.label,
                "precision": precision,
                "batch": work.batch,
                "metric": "tokens/s",
            }
            report.add(figures.row(about, mine, found, floor_rate(work, ceilings)))
            _say(line(report.rows[-1]))
    finally:
        for runner in runners:
            runner.close()


def _ceilings(places: Places) -> dict[str, Any]:
    """Of this machine, now. Without them there are no floors, and the run goes on."""
    try:
        worker = Worker(engine_command(), {}, places.logs / "ceilings.log", ROOT)
        try:
            return worker.ask({"op": "ceilings", "threads": places.threads}, measure.RUN_SECONDS)
        finally:
            worker.close()
    except WorkerError as error:
        return {"failure": str(error)}


def _chosen(comparison: Comparison) -> Sequence[Contestant]:
    known = ENGINE_PEERS[comparison.task]
    unknown = set(comparison.peers) - {peer.name for peer in known}
    if unknown:
        names = ", ".join(peer.name for peer in known)
        raise ValueError(f"no peer for {comparison.task}: {', '.join(unknown)}; there are {names}")
    return [peer for peer in known if not comparison.peers or peer.name in comparison.peers]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
