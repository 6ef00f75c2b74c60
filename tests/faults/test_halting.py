"""Costly requests of every call at once: short calls of others are served meanwhile."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
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
    tiny_bundles: Path,
    head_bundles: Path,
    retrieval_bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bundles")
    for root in (tiny_bundles, head_bundles, retrieval_bundles):
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


def step_counts(server: ServerProcess, model: str) -> dict[float, int]:
    """How many steps of ``model`` took at most so many seconds, by the histogram's bounds."""
    with urllib.request.urlopen(server.metrics_url) as response:
        text = response.read().decode()
    pattern = rf'^triune_step_seconds_bucket{{le="([^"]+)",model="{model}"}} (\S+)$'
    return {float(le): int(float(n)) for le, n in re.findall(pattern, text, re.MULTILINE)}


def step_percentile(before: dict[float, int], after: dict[float, int], share: float) -> float:
    """An upper bound of the ``share`` quantile of the steps between two counts, in seconds."""
    counts = {le: after[le] - before.get(le, 0) for le in after}
    return min(le for le, count in counts.items() if count >= share * max(counts.values()))


def test_costly_requests_do_not_halt_short_calls(server: ServerProcess) -> None:
    with Client(server.target, timeout_seconds=60) as client:

        def tokenize() -> None:
            assert client.tokenize("tagger", "hello").outputs[0].token_ids

        def generate() -> None:
            assert client.generate("tiny-decoder", "7,", max_new_tokens=1).outputs[0].text

        generate()
        alone = {call: latencies(call) for call in (tokenize, generate)}
        before = step_counts(server, "tiny-decoder")
        with costly_clients(server) as statuses:
            beside = {call: latencies(call) for call in (tokenize, generate)}
        after = step_counts(server, "tiny-decoder")
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
        p99_of_a_step_meanwhile_at_most_milliseconds=1000 * step_percentile(before, after, 0.99),
        **{
            f"{name}_of_{call.__name__}_{when}_milliseconds": percentile(values[call], share)
            for call in (tokenize, generate)
            for when, values in (("alone", alone), ("meanwhile", beside))
            for name, share in (("median", 0.5), ("p99", 0.99))
        },
    )
