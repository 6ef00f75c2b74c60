"""``python -m loadtest compare``: everybody side by side, row by row."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from loadtest.compare import figures, measure
from loadtest.compare.contestants import (
    ENGINE_PEERS,
    ROOT,
    STATIC_PEERS,
    Contestant,
    Level,
    engine_command,
    engine_of,
)
from loadtest.compare.errors import WorkerError
from loadtest.compare.floors import floor_rate
from loadtest.compare.loads import Load, Requests, loads
from loadtest.compare.measure import Places, Runner
from loadtest.compare.models import model_steps
from loadtest.compare.prepare import prepare
from loadtest.compare.report import Report, line, print_table
from loadtest.compare.server_level import ServerComparison, estimate_seconds
from loadtest.compare.server_runner import ServerRunner
from loadtest.compare.servers import SERVER_PEERS, Server, ServerPlaces, server_of, tokenizer_of
from loadtest.compare.worker import Worker
from loadtest.compare.works import PRECISIONS, works
from loadtest.tasks import Task

Peer = TypeVar("Peer", Contestant, Server)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What to compare. ``peers``, ``precisions``: names; none given is all, or the usual.

    ``duration_seconds`` is that of one run against a server; of engines, runs end by themselves.
    """

    task: Task
    level: Level
    peers: tuple[str, ...]
    precisions: tuple[str, ...]
    rounds: int
    duration_seconds: float
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

    @property
    def ours(self) -> tuple[str, ...]:
        """The precisions of our side."""
        return self.precisions or PRECISIONS[self.level][self.task]


def prepare_all(comparison: Comparison) -> bool:
    """Installs and exports what the comparison needs. Returns whether all of it is there."""
    chosen: Sequence[Contestant | Server]
    if comparison.level == Level.SERVER:
        chosen = _chosen(SERVER_PEERS[comparison.task], comparison)
    else:
        chosen = _chosen(_engine_peers(comparison), comparison)
    environments = {
        peer.environment.name: peer.environment for peer in chosen if peer.environment is not None
    }
    steps = model_steps(comparison.task, comparison.level, comparison.root)
    needed = {step.environment.name: step.environment for step in steps if step.environment}
    everything = {**needed, **environments}
    return prepare(list(everything.values()), steps, comparison.root, _say)


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
    if comparison.level == Level.SERVER:
        report.note("duration_seconds", comparison.duration_seconds)
        _compare_servers(comparison, report)
    else:
        ceilings = _ceilings(comparison.places)
        report.note("ceilings", ceilings)
        for precision in comparison.ours:
            _compare_engines(comparison, precision, ceilings, report)
    print_table(report.rows)
    return bool(report.rows) and all(not isinstance(row["ours"], str) for row in report.rows)


def _compare_servers(comparison: Comparison, report: Report) -> None:
    task, threads = comparison.task, comparison.threads
    places = ServerPlaces(
        environments=comparison.places.environments, models=comparison.places.models
    )
    ours = {precision: server_of(task, precision) for precision in comparison.ours}
    peers = _chosen(SERVER_PEERS[task], comparison)
    chosen = loads(task, quick=comparison.quick)
    layouts = [len(server.layouts) for server in (*ours.values(), *peers)]
    seconds = estimate_seconds(chosen, layouts, comparison.rounds, comparison.duration_seconds)
    _say(f"about {seconds / 60:.0f} minutes, and what it takes to start the servers")
    tokenizer = tokenizer_of(task, comparison.ours[0], places.models)

    def runner(server: Server) -> ServerRunner:
        return ServerRunner(server, task, places, comparison.places.logs, threads)

    def requests_of(load: Load, seed: int) -> Requests:
        return Requests(load, tokenizer, seed)

    with closing(
        ServerComparison(
            {precision: runner(server) for precision, server in ours.items()},
            [runner(server) for server in peers],
            requests_of,
            comparison.rounds,
            comparison.duration_seconds,
            _say,
        )
    ) as together:
        for load in chosen:
            for row in together.rows(load):
                report.add(row)
                _say(line(row))


def _compare_engines(
    comparison: Comparison, precision: str, ceilings: dict[str, Any], report: Report
) -> None:
    task, places = comparison.task, comparison.places
    runners: list[Runner] = []
    reference = None
    try:
        for contestant in (engine_of(task), *_chosen(_engine_peers(comparison), comparison)):
            runners.append(Runner(contestant, task, precision, places))
            _say(f"{contestant.name} {precision}: {runners[-1].reason or runners[-1].version}")
        if task == Task.EMBED:
            reference = Runner(engine_of(task), task, "fp32", places)
        report.note(f"versions_{precision}", {runner.name: runner.version for runner in runners})
        for work in works(task, precision, comparison.level, quick=comparison.quick):
            found = measure.measure(work, runners, comparison.rounds)
            if reference is not None:
                found = measure.with_cosines(found, work, runners, reference)
            mine = found.pop(runners[0].name)
            about = {
                "task": task.value,
                "level": comparison.level.value,
                "work": work.label,
                "precision": precision,
                "batch": work.batch,
                "metric": "tokens/s",
            }
            report.add(figures.row(about, mine, found, floor_rate(work, ceilings)))
            _say(line(report.rows[-1]))
    finally:
        for runner in (*runners, *([reference] if reference else [])):
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


def _engine_peers(comparison: Comparison) -> Sequence[Contestant]:
    if comparison.level == Level.STATIC:
        return STATIC_PEERS.get(comparison.task, ())
    return ENGINE_PEERS[comparison.task]


def _chosen(known: Sequence[Peer], comparison: Comparison) -> list[Peer]:
    unknown = set(comparison.peers) - {peer.name for peer in known}
    if unknown:
        names = ", ".join(peer.name for peer in known)
        raise ValueError(
            f"no peer for {comparison.task}: {', '.join(sorted(unknown))}; there are {names}"
        )
    return [peer for peer in known if not comparison.peers or peer.name in comparison.peers]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
