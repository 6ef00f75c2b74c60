"""``python -m tests.soak --minutes 30 --json FILE``: a server under mixed load for a long time.

Client processes send valid and invalid requests by every protocol, cancel, stall and are killed;
a well-behaved client measures the latency of small calls. At the end the
server's memory must not have grown significantly, no slot may be in use, and only expected errors
may have occurred. With ``--plant-leak KB`` the server leaks on purpose, and the run must fail.
"""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from loadtest.machine import machine, versions
from tests.bundles import ROOT, head_bundles, tiny_bundles
from tests.serving import ServerProcess, wait_until_ready
from tests.soak.observe import Probe, open_slots, requests, samples
from tests.soak.report import Report, make_report

MAX_SECONDS_TO_DRAIN = 90.0
SECONDS_BETWEEN_KILLS = 5.0
PROBED_MODEL = "tiny-decoder"


def soak(
    bundles: Sequence[Path],
    seconds: float,
    *,
    warm_up_seconds: float,
    max_megabytes_per_hour: float | None = None,
    max_kilobytes_per_call: float | None = None,
    enough_calls: int | None = None,
    num_clients: int = 2,
    leak_kilobytes: int = 0,
) -> Report:
    """Runs a server under load and returns the report.

    Args:
        bundles: folders of bundles.
        seconds: duration, unless ``enough_calls`` end it earlier.
        warm_up_seconds: from the start; excluded from the memory slope.
        max_megabytes_per_hour, max_kilobytes_per_call: limits of the slope; ``None`` is no limit.
        enough_calls: the run ends after this many calls and a killed client.
        num_clients: number of mixed client processes.
        leak_kilobytes: kilobytes that the server leaks per call, on purpose.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for root in bundles:
            for path in sorted(root.iterdir()):
                if path.is_dir() and not (folder / path.name).exists():
                    shutil.copytree(path, folder / path.name)  # the server refuses links
        server = stack.enter_context(_server(folder, leak_kilobytes))
        probe = Probe(server.target, PROBED_MODEL)
        with _clients(server, num_clients) as killed, probe.running():
            measured = list(samples(server, probe, seconds, enough_calls, killed))
        open_slots_at_end = _wait_until_drained(server)
        calls = requests(server)
        server.process.send_signal(signal.SIGTERM)
        exit_status = server.process.wait(MAX_SECONDS_TO_DRAIN)
    return make_report(
        measured,
        calls,
        warm_up_seconds=warm_up_seconds,
        max_megabytes_per_hour=max_megabytes_per_hour,
        max_kilobytes_per_call=max_kilobytes_per_call,
        killed_clients=len(killed),
        open_slots_at_end=open_slots_at_end,
        exit_status=exit_status,
        failed_probes=probe.failures,
    )


@contextmanager
def _server(bundles: Path, leak_kilobytes: int) -> Iterator[ServerProcess]:
    program = ["tests.soak.leaking", str(leak_kilobytes)] if leak_kilobytes else ["server"]
    command = [sys.executable, "-m", *program, "--bundles", str(bundles), "--slots", "8"]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--max-queue", "32"]
    command += ["--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            server = wait_until_ready(process)
            assert process.stderr is not None
            # Keep reading its output: a full pipe would block it.
            threading.Thread(target=_copy, args=(process.stderr,), daemon=True).start()
            yield server
        finally:
            process.kill()


def _copy(lines: Iterator[str]) -> None:
    for line in lines:
        if " ERROR " in line or " CRITICAL " in line:
            sys.stderr.write(line)


@contextmanager
def _clients(server: ServerProcess, num_mixed: int) -> Iterator[list[int]]:
    """Runs clients until the block ends, then kills them. Yields the ids of crashed clients."""
    killed: list[int] = []
    ended = threading.Event()
    with ExitStack() as stack:
        for number in range(num_mixed):
            stack.enter_context(_client("mixed", server.target, number))
        stack.enter_context(_client("staller", server.target, 0))
        addresses = [server.target, server.http_url, "0"]
        stack.enter_context(_program("tests.soak.other_protocols", *addresses))
        crashes = threading.Thread(target=_crash, args=(server.target, killed, ended))
        crashes.start()
        try:
            yield killed
        finally:
            ended.set()
            crashes.join()


def _crash(target: str, killed: list[int], ended: threading.Event) -> None:
    while not ended.is_set():
        with _client("crasher", target, len(killed)) as process:
            assert process.stdout is not None
            if process.stdout.readline():
                process.kill()
                killed.append(process.pid)
        ended.wait(SECONDS_BETWEEN_KILLS)


def _client(role: str, target: str, seed: int) -> "AbstractContextManager[subprocess.Popen[str]]":
    return _program("tests.soak.clients", role, target, str(seed))


@contextmanager
def _program(module: str, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_until_drained(server: ServerProcess) -> int:
    """Waits until no slot is in use. Returns the number of slots still in use, which leaked."""
    deadline, wait = time.monotonic() + MAX_SECONDS_TO_DRAIN, threading.Event()
    while (count := open_slots(server)) and time.monotonic() < deadline:
        wait.wait(0.2)
    return count


def main(
    minutes: Annotated[float, typer.Option(min=0.05)] = 30.0,
    json_: Annotated[Path | None, typer.Option("--json", help="Output file.")] = None,
    bundles: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of more bundles than the tests' small models."),
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Number of mixed client processes.")] = 2,
    warm_up: Annotated[
        float, typer.Option(min=0, help="Share of the time to leave out of the slope.")
    ] = 0.2,
    max_growth: Annotated[
        float,
        typer.Option(help="Largest accepted growth in MB per hour, without what gRPC loses."),
    ] = 16.0,
    plant_leak: Annotated[
        int, typer.Option(min=0, help="Kilobytes that the server leaks with each call, on purpose.")
    ] = 0,
) -> None:
    """Run a soak test; exit status 0 if it passes, else 1."""
    report = soak(
        [tiny_bundles(), head_bundles(), *(bundles or [])],
        60 * minutes,
        warm_up_seconds=60 * minutes * warm_up,
        max_megabytes_per_hour=max_growth,
        num_clients=clients,
        leak_kilobytes=plant_leak,
    )
    slope = report.megabytes_per_hour
    by_call = report.kilobytes_per_call
    print(f"{sum(sum(row.values()) for row in report.requests.values())} calls, {report.errors}")
    print(
        f"{slope.value:.1f} MB/hour (95 %: {slope.low:.1f} to {slope.high:.1f}), "
        f"of which gRPC may lose {report.lost_megabytes_per_hour:.1f}"
    )
    print(f"{by_call.value:.2f} kB/call (95 %: {by_call.low:.2f} to {by_call.high:.2f})")
    print(
        f"{report.last_threads} threads, {report.last_descriptors} descriptors at the end; "
        f"small calls {report.median_milliseconds:.1f} ms, p99 {report.p99_milliseconds:.0f} ms"
    )
    print("\n".join(report.faults) or "passed")
    if json_ is not None:
        about = {
            "machine": machine(),
            "versions": versions(),
            "leaked_kilobytes_per_call": plant_leak,
        }
        json_.write_text(json.dumps(about | asdict(report), indent=2) + "\n", "utf-8")
    raise typer.Exit(bool(report.faults))


if __name__ == "__main__":
    typer.run(main)
