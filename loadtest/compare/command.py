"""``python -m loadtest compare``: everybody side by side, row by row."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
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
)
from loadtest.compare.engines import Engines
from loadtest.compare.errors import WorkerError
from loadtest.compare.floors import floor_rate
from loadtest.compare.loads import Load, Requests, loads
from loadtest.compare.measure import Places
from loadtest.compare.models import model_steps
from loadtest.compare.prepare import prepare
from loadtest.compare.report import Report, line, print_table
from loadtest.compare.server_level import ServerComparison, load_seconds
from loadtest.compare.server_runner import ServerRunner
from loadtest.compare.servers import SERVER_PEERS, Server, ServerPlaces, server_of, tokenizer_of
from loadtest.compare.timetable import Timetable
from loadtest.compare.worker import Worker
from loadtest.compare.works import PRECISIONS, works
from loadtest.tasks import Task

Say = Callable[[str], None]
Peer = TypeVar("Peer", Contestant, Server)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What to compare. ``peers``, ``precisions``: names; none given is all, or the usual.

    ``rounds`` are run as far as ``budget_seconds`` allow; ``None`` is no bound.
    ``duration_seconds`` is that of one run against a server; of engines, runs end by themselves.
    """

    task: Task
    level: Level
    peers: tuple[str, ...]
    precisions: tuple[str, ...]
    rounds: int
    duration_seconds: float
    budget_seconds: float | None
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
    """Installs, exports and compiles what the comparison needs. Returns whether all is there."""
    is_server = comparison.level == Level.SERVER
    servers = _chosen(SERVER_PEERS[comparison.task], comparison) if is_server else []
    engines = [] if is_server else _chosen(_engine_peers(comparison), comparison)
    steps = model_steps(comparison.task, comparison.level, comparison.root)
    needed = [one.environment for one in steps]
    needed += [one.environment for one in servers]
    needed += [one.environment for one in engines]
    environments = {one.name: one for one in needed if one is not None}
    good = prepare(list(environments.values()), steps, comparison.root, _say)
    with _ended_by_signals():
        for server in servers:
            with closing(_runner(server, comparison, _say)) as runner:
                good &= runner.compile()
    return good


def _runner(server: Server, comparison: Comparison, say: Say) -> ServerRunner:
    places = comparison.places
    return ServerRunner(
        server,
        comparison.task,
        ServerPlaces(environments=places.environments, models=places.models),
        places.logs,
        comparison.threads,
        say,
    )


def compare(comparison: Comparison, path: Path) -> bool:
    """Measures, and writes ``path`` after every row. Returns whether we ran everywhere.

    Whoever was started is gone when this returns, or is ended by a signal.
    """
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
    with _ended_by_signals():
        if comparison.level == Level.SERVER:
            report.note("duration_seconds", comparison.duration_seconds)
            _compare_servers(comparison, report)
        else:
            _compare_engines(comparison, report)
    print_table(report.rows)
    return bool(report.rows) and all(not isinstance(row["ours"], str) for row in report.rows)


def _compare_servers(comparison: Comparison, report: Report) -> None:
    task = comparison.task
    ours = {precision: server_of(task, precision) for precision in comparison.ours}
    peers = _chosen(SERVER_PEERS[task], comparison)
    chosen = loads(task, quick=comparison.quick)
    layouts = [len(server.layouts) for server in (*ours.values(), *peers)]
    rounds, duration = comparison.rounds, comparison.duration_seconds
    costs = [load_seconds(load, layouts, rounds, duration) for load in chosen]
    timetable = Timetable(comparison.budget_seconds, costs)
    starts = sum(server.start_seconds * len(server.layouts) for server in (*ours.values(), *peers))
    say = _announced(timetable, sum(costs) + starts, comparison)
    tokenizer = tokenizer_of(task, comparison.ours[0], comparison.places.models)

    def requests_of(load: Load, seed: int) -> Requests:
        return Requests(load, tokenizer, seed)

    with closing(
        ServerComparison(
            {precision: _runner(server, comparison, say) for precision, server in ours.items()},
            [_runner(server, comparison, say) for server in peers],
            requests_of,
            rounds,
            duration,
            timetable,
            say,
        )
    ) as together:
        for load in chosen:
            if timetable.is_over:
                _leave_out(report, load.label, load.clients, say)
                continue
            first = len(report.rows)
            for rows in together.rounds(load, timetable.begin()):
                report.put(first, rows)
            for row in report.rows[first:]:
                say(line(row))


def _compare_engines(comparison: Comparison, report: Report) -> None:
    works_of = {
        precision: works(comparison.task, precision, comparison.level, quick=comparison.quick)
        for precision in comparison.ours
    }
    timetable = Timetable(
        comparison.budget_seconds, [1.0 for chosen in works_of.values() for _ in chosen]
    )
    say = _announced(timetable, None, comparison)
    peers = _chosen(_engine_peers(comparison), comparison)
    ceilings = _ceilings(comparison.places)
    report.note("ceilings", ceilings)
    for precision, chosen in works_of.items():
        with closing(
            Engines(comparison.task, precision, peers, comparison.places, comparison.rounds, say)
        ) as engines:
            report.note(f"versions_{precision}", engines.versions)
            for work in chosen:
                if timetable.is_over:
                    _leave_out(report, work.label, work.batch, say)
                    continue
                mine, found = engines.measured(work, timetable)
                about = {
                    "task": comparison.task.value,
                    "level": comparison.level.value,
                    "work": work.label,
                    "precision": precision,
                    "batch": work.batch,
                    "metric": "tokens/s",
                }
                report.add(figures.row(about, mine, found, floor_rate(work, ceilings)))
                say(line(report.rows[-1]))


def _announced(timetable: Timetable, seconds: float | None, comparison: Comparison) -> Say:
    """Says how long it takes; what is said from now on begins with how far it is."""
    budget = comparison.budget_seconds

    def say(text: str) -> None:
        print(f"[{timetable.stamp()}] {text}", file=sys.stderr, flush=True)

    rounds = f"up to {comparison.rounds} rounds"
    whole = "" if seconds is None else f" about {seconds / 60:.0f} minutes for all of them;"
    bound = (
        "" if budget is None else f" ends within {budget / 60:.1f} minutes, with fewer if need be"
    )
    say(f"{rounds};{whole}{bound}")
    return say


def _leave_out(report: Report, label: str, size: int, say: Say) -> None:
    """There is no time for it."""
    report.left_out(f"{label}, {size}")
    say(f"{label}, {size}: no time is left")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A request to end (SIGTERM) is an exception, as Ctrl-C is: whoever was started is ended."""

    def end(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
