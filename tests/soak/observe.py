"""What a soak run measures: the process, the metrics, and the latency of small calls."""

import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from client.errors import TriuneError
from client.sync import Client
from tests.faults.record import percentile
from tests.serving import ServerProcess
from tests.soak.report import Sample

SECONDS_BETWEEN_PROBES = 0.05
_SLOTS = re.compile(r"^triune_sequences_(?:running|waiting)\{[^}]*\} (\S+)", re.MULTILINE)
_REQUESTS = re.compile(
    r'^triune_requests_total\{method="([^"]+)",model="[^"]*",status="(\w+)"\} (\S+)', re.MULTILINE
)
_STATUS = re.compile(r"^(VmRSS|Threads):\s+(\d+)", re.MULTILINE)


class Probe:
    """A well-behaved client: one short text to tokenize after the other, with a short pause."""

    def __init__(self, target: str, model: str) -> None:
        self._target, self._model = target, model
        self._lock = threading.Lock()
        self._milliseconds: list[float] = []
        self._failures = 0
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator["Probe"]:
        """Makes calls within the block, in a thread."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def take(self) -> tuple[float, float] | None:
        """The median and the 99th percentile since the last time, in ms; None without calls."""
        with self._lock:
            taken, self._milliseconds = self._milliseconds, []
        return (percentile(taken, 0.5), percentile(taken, 0.99)) if taken else None

    @property
    def failures(self) -> int:
        """Calls that did not succeed."""
        return self._failures

    def _run(self) -> None:
        with Client(self._target, timeout_seconds=60) as client:
            while not self._ended.wait(SECONDS_BETWEEN_PROBES):
                started = time.monotonic()
                try:
                    client.tokenize(self._model, "hello")
                except TriuneError:
                    self._failures += 1
                with self._lock:
                    self._milliseconds.append(1000 * (time.monotonic() - started))


def samples(
    server: ServerProcess,
    probe: Probe,
    seconds: float,
    enough_calls: int | None,
    killed: Sequence[int],
) -> Iterator[Sample]:
    """Samples the server at even intervals: about 400 times, at most ten times a second."""
    started, wait = time.monotonic(), threading.Event()
    interval = max(0.1, seconds / 400)
    num_calls, latency = 0, (0.0, 0.0)
    while (elapsed := time.monotonic() - started) < seconds:
        if enough_calls is not None and killed and num_calls >= enough_calls:
            return
        num_calls = sum(sum(row.values()) for row in requests(server).values())
        folder = Path(f"/proc/{server.process.pid}")
        status = {name: int(value) for name, value in _STATUS.findall(_read(folder / "status"))}
        latency = probe.take() or latency
        yield Sample(
            elapsed,
            num_calls,
            1024 * status["VmRSS"],
            open_slots(server),
            status["Threads"],
            sum(1 for _ in (folder / "fd").iterdir()),
            *latency,
        )
        wait.wait(interval)


def _read(path: Path) -> str:
    return path.read_text("ascii")


def metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(server.metrics_url, timeout=60) as response:
        text: str = response.read().decode()
    return text


def open_slots(server: ServerProcess) -> int:
    return sum(int(float(value)) for value in _SLOTS.findall(metrics(server)))


def requests(server: ServerProcess) -> dict[str, dict[str, int]]:
    """Finished calls by method (or route of HTTP) and status."""
    counts: dict[str, dict[str, int]] = {}
    for method, status, value in _REQUESTS.findall(metrics(server)):
        row = counts.setdefault(method, {})
        row[status] = row.get(status, 0) + int(float(value))
    return counts
