"""``python -m loadtest compare``: measures our engine or server and its peers, row by row."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from loadtest.compare import measurements
from loadtest.compare.candidates import Candidate, Level
from loadtest.compare.ceilings import Ceilings, highest, measure_ceilings
from loadtest.compare.decoders import SMOLLM2, Decoder
from loadtest.compare.engine_level import EngineComparison
from loadtest.compare.engines import engine_peers, our_engine
from loadtest.compare.errors import WorkerError
from loadtest.compare.loads import Load, Requests, loads
from loadtest.compare.models import build_steps
from loadtest.compare.our_servers import our_server, our_sides, tokenizer_path
from loadtest.compare.paths import Paths
from loadtest.compare.prepare import prepare
from loadtest.compare.report import Report, format_row, print_table
from loadtest.compare.roofline import roofline_rate
from loadtest.compare.server_level import ServerComparison, load_seconds
from loadtest.compare.server_runner import ServerRunner
from loadtest.compare.servers import SERVER_PEERS, ServerCandidate
from loadtest.compare.time_budget import TimeBudget
from loadtest.compare.workloads import PRECISIONS, Workload, workloads
from loadtest.tasks import Task

Log = Callable[[str], None]
Peer = TypeVar("Peer", Candidate, ServerCandidate)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What to compare.

    Args:
        decoder: what generates.
        peers: names; empty means all.
        precisions: of our side; empty means those of ``PRECISIONS``.
        protocols: of our server, as named in ``OUR_PROTOCOLS``; empty means all of the task.
        rounds: at most; fewer if the budget does not allow more.
        duration_seconds: of one run against a server. Runs of engines end by themselves.
        budget_seconds: ``None`` is no limit.
        quick: a short run that only shows that everything works.
        threads: of each candidate.
        root: folder of environments, models and logs.
    """

    task: Task
    level: Level
    decoder: Decoder = SMOLLM2
    peers: tuple[str, ...]
    precisions: tuple[str, ...]
    protocols: tuple[str, ...]
    rounds: int
    duration_seconds: float
    budget_seconds: float | None
    quick: bool
    threads: int
    root: Path

    @property
    def paths(self) -> Paths:
        return Paths(
            environments=self.root / "peers",
            models=self.root / "compare",
            logs=self.root / "compare" / "logs",
        )

    @property
    def our_precisions(self) -> tuple[str, ...]:
        return self.precisions or PRECISIONS[self.level][self.task]


def prepare_all(comparison: Comparison) -> bool:
    """Installs, exports and compiles what the comparison needs. Returns whether all succeeded."""
    is_server = comparison.level == Level.SERVER
    servers = _select(SERVER_PEERS[comparison.task], comparison) if is_server else []
    engines = [] if is_server else _select(_engine_peers(comparison), comparison)
    steps = build_steps(
        comparison.task,
        comparison.level,
        comparison.root,
        comparison.decoder,
        comparison.our_precisions,
    )
    needed = [step.environment for step in steps]
    needed += [server.environment for server in servers]
    needed += [engine.environment for engine in engines]
    environments = {each.name: each for each in needed if each is not None}
    succeeded = prepare(list(environments.values()), steps, comparison.root, _log)
    with _sigterm_as_exception():
        for server in servers:
            with closing(_server_runner(server, comparison, _log)) as runner:
                succeeded &= runner.compile()
    return succeeded


def compare(comparison: Comparison, path: Path) -> bool:
    """Measures and writes ``path`` after every row. Returns whether our side ran everywhere.

    All processes that it starts have ended when it returns or a signal ends it.
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
    with _sigterm_as_exception():
        if comparison.level == Level.SERVER:
            report.set("duration_seconds", comparison.duration_seconds)
            _compare_servers(comparison, report)
        else:
            _compare_engines(comparison, report)
    print_table(report.rows)
    return bool(report.rows) and all(not isinstance(row["ours"], str) for row in report.rows)


def _compare_servers(comparison: Comparison, report: Report) -> None:
    task = comparison.task
    sides = our_sides(task, comparison.our_precisions, comparison.protocols)
    ours = {side: our_server(task, side) for side in sides}
    peers = _select(SERVER_PEERS[task], comparison)
    selected = loads(task, quick=comparison.quick)
    layouts = [len(server.layouts) for server in (*ours.values(), *peers)]
    rounds, duration = comparison.rounds, comparison.duration_seconds
    costs = [load_seconds(load, layouts, rounds, duration) for load in selected]
    time_budget = TimeBudget(comparison.budget_seconds, costs)
    starts = sum(server.start_seconds * len(server.layouts) for server in (*ours.values(), *peers))
    log = _progress_log(time_budget, sum(costs) + starts, comparison)
    tokenizer = tokenizer_path(task, comparison.our_precisions[0], comparison.paths.models)

    def requests_of(load: Load, seed: int) -> Requests:
        return Requests(load, tokenizer, seed)

    with closing(
        ServerComparison(
            {side: _server_runner(server, comparison, log) for side, server in ours.items()},
            [_server_runner(server, comparison, log) for server in peers],
            requests_of,
            rounds,
            duration,
            time_budget,
            log,
        )
    ) as servers:
        for load in selected:
            if time_budget.is_spent:
                _leave_out(report, load.label, load.clients, log)
                continue
            first = len(report.rows)
            for rows in servers.rounds(load, time_budget.begin_item()):
                report.replace_from(first, rows)
            for row in report.rows[first:]:
                log(format_row(row))


def _compare_engines(comparison: Comparison, report: Report) -> None:
    decoder = comparison.decoder
    workloads_by_precision = {
        precision: workloads(
            comparison.task, precision, comparison.level, quick=comparison.quick, model=decoder.size
        )
        for precision in comparison.our_precisions
    }
    costs = [1.0 for selected in workloads_by_precision.values() for _ in selected]
    time_budget = TimeBudget(comparison.budget_seconds, costs)
    log = _progress_log(time_budget, None, comparison)
    our_candidate = our_engine(comparison.task, comparison.level, decoder)
    peers = _select(_engine_peers(comparison), comparison)
    ceilings = _ceilings(comparison)
    report.set("ceilings", ceilings)
    measured: list[Workload] = []
    for precision, selected in workloads_by_precision.items():
        with closing(
            EngineComparison(
                comparison.task,
                comparison.level,
                precision,
                our_candidate,
                peers,
                comparison.paths,
                comparison.threads,
                comparison.rounds,
                log,
            )
        ) as engines:
            report.set(f"versions_{precision}", engines.versions)
            for workload in selected:
                if time_budget.is_spent:
                    _leave_out(report, workload.label, workload.batch, log)
                    continue
                ours, theirs = engines.measure(workload, time_budget)
                about = {
                    "task": comparison.task.value,
                    "level": comparison.level.value,
                    "work": workload.label,
                    "precision": precision,
                    "batch": workload.batch,
                    "metric": workload.metric,
                }
                if decoder is not SMOLLM2:
                    about["model"] = decoder.name
                floor = roofline_rate(workload, ceilings)
                report.add(measurements.row(about, ours, theirs, floor))
                measured.append(workload)
                log(format_row(report.rows[-1]))
    # The machine may have been disturbed at the start.
    if "failure" not in ceilings:
        ceilings = highest(ceilings, _ceilings(comparison))
    report.set("ceilings", ceilings)
    floors = [roofline_rate(workload, ceilings) for workload in measured]
    report.replace_from(
        0,
        [measurements.with_floor(*pair) for pair in zip(report.rows, floors, strict=True)],
    )


def _engine_peers(comparison: Comparison) -> Sequence[Candidate]:
    return engine_peers(comparison.task, comparison.level, comparison.decoder)


def _server_runner(server: ServerCandidate, comparison: Comparison, log: Log) -> ServerRunner:
    return ServerRunner(server, comparison.task, comparison.paths, comparison.threads, log)


def _progress_log(time_budget: TimeBudget, seconds: float | None, comparison: Comparison) -> Log:
    """A log whose lines begin with the time used so far. It announces the expected duration."""
    budget = comparison.budget_seconds

    def log(text: str) -> None:
        print(f"[{time_budget.progress()}] {text}", file=sys.stderr, flush=True)

    expected = "" if seconds is None else f", about {seconds / 60:.0f} minutes if all are run"
    limit = "" if budget is None else f"; ends within {budget / 60:.1f} minutes"
    log(f"up to {comparison.rounds} rounds{expected}{limit}")
    return log


def _leave_out(report: Report, label: str, size: int, log: Log) -> None:
    report.left_out(f"{label}, {size}")
    log(f"{label}, {size}: left out, the time budget is spent")


@contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """SIGTERM raises ``SystemExit``, so that processes are ended as on Ctrl-C."""

    def end(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ceilings(comparison: Comparison) -> Ceilings:
    """This machine's bandwidth and arithmetic rates. Without them rows have no roofline."""
    try:
        return measure_ceilings(comparison.threads, comparison.root / "peak")
    except WorkerError as error:
        return {"failure": str(error)}


def _select(known: Sequence[Peer], comparison: Comparison) -> list[Peer]:
    unknown = set(comparison.peers) - {peer.name for peer in known}
    if unknown:
        raise ValueError(
            f"no peer for {comparison.task}: {', '.join(sorted(unknown))}; "
            f"there are {', '.join(peer.name for peer in known)}"
        )
    return [peer for peer in known if not comparison.peers or peer.name in comparison.peers]


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
