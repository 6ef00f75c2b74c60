"""``python -m tests.soak --minutes 30 --json FILE``: a server under mixed load for a long time.

Client processes send valid and invalid requests, cancel, stall and are killed. At the end the
server's memory must not have grown significantly, no slot may be in use, and only expected errors
may have occurred. With ``--plant-leak KB`` the server leaks on purpose, and the run must fail.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from loadtest.machine import machine, versions
from tests.bundles import ROOT, head_bundles, tiny_bundles
from tests.serving import ServerProcess, wait_until_ready
from tests.soak.report import Report, Sample, make_report

MAX_SECONDS_TO_DRAIN = 90.0
SECONDS_BETWEEN_KILLS = 5.0
_SLOTS = re.compile(r"^triune_sequences_(?:running|waiting)\{[^}]*\} (\S+)", re.MULTILINE)
_REQUESTS = re.compile(
    r'^triune_requests_total\{method="(\w+)",model="[^"]*",status="(\w+)"\} (\S+)', re.MULTILINE
)


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
        with _clients(server.target, num_clients) as killed:
            samples = list(_samples(server, seconds, enough_calls, killed))
        open_slots = _wait_until_drained(server)
        requests = _requests(server)
        server.process.send_signal(signal.SIGTERM)
        exit_status = server.process.wait(MAX_SECONDS_TO_DRAIN)
    return make_report(
        samples,
        requests,
        warm_up_seconds=warm_up_seconds,
        max_megabytes_per_hour=max_megabytes_per_hour,
        max_kilobytes_per_call=max_kilobytes_per_call,
        killed_clients=len(killed),
        open_slots_at_end=open_slots,
        exit_status=exit_status,
    )


@contextmanager
def _server(bundles: Path, leak_kilobytes: int) -> Iterator[ServerProcess]:
    program = ["tests.soak.leaking", str(leak_kilobytes)] if leak_kilobytes else ["server"]
    command = [sys.executable, "-m", *program, "--bundles", str(bundles), "--slots", "8"]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--max-queue", "32"]
    command += ["--http", "none"]
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
def _clients(target: str, num_mixed: int) -> Iterator[list[int]]:
    """Runs clients until the block ends, then kills them. Yields the ids of crashed clients."""
    killed: list[int] = []
    ended = threading.Event()
    with ExitStack() as stack:
        for number in range(num_mixed):
            stack.enter_context(_client("mixed", target, number))
        stack.enter_context(_client("staller", target, 0))
        crashes = threading.Thread(target=_crash, args=(target, killed, ended))
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


@contextmanager
def _client(role: str, target: str, seed: int) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "tests.soak.clients", role, target, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def _samples(
    server: ServerProcess, seconds: float, enough_calls: int | None, killed: Sequence[int]
) -> Iterator[Sample]:
    """Samples the server at even intervals: about 400 times, at most ten times a second."""
    started, wait = time.monotonic(), threading.Event()
    interval = max(0.1, seconds / 400)
    num_calls = 0
    while (elapsed := time.monotonic() - started) < seconds:
        if enough_calls is not None and killed and num_calls >= enough_calls:
            return
        num_calls = sum(sum(row.values()) for row in _requests(server).values())
        yield Sample(elapsed, num_calls, _resident_bytes(server), _open_slots(server))
        wait.wait(interval)


def _resident_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text("ascii")
    match = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def _metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(server.metrics_url, timeout=60) as response:
        text: str = response.read().decode()
    return text


def _open_slots(server: ServerProcess) -> int:
    return sum(int(float(value)) for value in _SLOTS.findall(_metrics(server)))


def _wait_until_drained(server: ServerProcess) -> int:
    """Waits until no slot is in use. Returns the number of slots still in use, which leaked."""
    deadline, wait = time.monotonic() + MAX_SECONDS_TO_DRAIN, threading.Event()
    while (count := _open_slots(server)) and time.monotonic() < deadline:
        wait.wait(0.2)
    return count


def _requests(server: ServerProcess) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for method, status, value in _REQUESTS.findall(_metrics(server)):
        row = counts.setdefault(method, {})
        row[status] = row.get(status, 0) + int(float(value))
    return counts


def main(
    minutes: Annotated[float, typer.Option(min=0.05)] = 30.0,
    json_: Annotated[Path | None, typer.Option("--json", help="Output file.")] = None,
    bundles: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of bundles; by default the tests' small models."),
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Number of mixed client processes.")] = 2,
    warm_up: Annotated[
        float, typer.Option(min=0, help="Share of the time to leave out of the slope.")
    ] = 0.2,
    max_growth: Annotated[
        float, typer.Option(help="Largest accepted growth in MB per hour.")
    ] = 16.0,
    plant_leak: Annotated[
        int, typer.Option(min=0, help="Kilobytes that the server leaks with each call, on purpose.")
    ] = 0,
) -> None:
    """Run a soak test; exit status 0 if it passes, else 1."""
    report = soak(
        bundles or [tiny_bundles(), head_bundles()],
        60 * minutes,
        warm_up_seconds=60 * minutes * warm_up,
        max_megabytes_per_hour=max_growth,
        num_clients=clients,
        leak_kilobytes=plant_leak,
    )
    slope = report.megabytes_per_hour
    by_call = report.kilobytes_per_call
    print(f"{sum(sum(row.values()) for row in report.requests.values())} calls, {report.errors}")
    print(f"{slope.value:.1f} MB/hour (95 %: {slope.low:.1f} to {slope.high:.1f})")
    print(f"{by_call.value:.2f} kB/call (95 %: {by_call.low:.2f} to {by_call.high:.2f})")
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
