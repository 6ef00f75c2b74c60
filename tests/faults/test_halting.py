"""Costly requests of every call at once: short calls of others are served meanwhile."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.sync import Client
from tests.faults.record import percentile, record
from tests.serving import ServerProcess, server_process

pytestmark = pytest.mark.heavy

SECONDS = 15.0
EXPECTED = {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}


@pytest.fixture(scope="module")
def server(
    tiny_bundles: Path, head_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bundles")
    for root in (tiny_bundles, head_bundles):
        for path in root.iterdir():
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
    with server_process(folder) as running:
        yield running


@contextmanager
def costly_clients(server: ServerProcess) -> Iterator[dict[str, dict[str, int]]]:
    """Sends the costly requests during the block; then has the statuses of each."""
    command = [sys.executable, "-m", "tests.faults.costly_clients", server.target]
    statuses: dict[str, dict[str, int]] = {}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield statuses
        output, _ = process.communicate(timeout=120)
    statuses |= json.loads(output)


def latencies(call: Callable[[], object]) -> list[float]:
    """The latencies of ``call``, one after another for :data:`SECONDS`, in milliseconds."""
    taken, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end:
        started = time.monotonic()
        call()
        taken.append(1000 * (time.monotonic() - started))
    return taken


def test_costly_requests_do_not_halt_short_calls(server: ServerProcess) -> None:
    with Client(server.target, timeout_seconds=60) as client:

        def tokenize() -> None:
            assert client.tokenize("tagger", "hello").outputs[0].token_ids

        def generate() -> None:
            assert client.generate("tiny-decoder", "7,", max_new_tokens=1).outputs[0].text

        generate()
        alone = {call: latencies(call) for call in (tokenize, generate)}
        with costly_clients(server) as statuses:
            beside = {call: latencies(call) for call in (tokenize, generate)}
    counts: dict[str, int] = {}
    for each in statuses.values():
        for status, count in each.items():
            counts[status] = counts.get(status, 0) + count
    assert set(counts) <= EXPECTED
    record(
        7,
        "the most expensive requests of every call at once, at the limits and far beyond them",
        "what exceeds a bound is rejected by its field; short calls are served meanwhile",
        costly_clients=len(statuses),
        runnable_processes_per_core=os.getloadavg()[0] / (os.cpu_count() or 1),
        answered=counts.get("OK", 0),
        rejected=counts.get("INVALID_ARGUMENT", 0),
        **{
            f"{name}_of_{call.__name__}_{when}_milliseconds": percentile(values[call], share)
            for call in (tokenize, generate)
            for when, values in (("alone", alone), ("meanwhile", beside))
            for name, share in (("median", 0.5), ("p99", 0.99))
        },
    )
