"""HTTP clients that leave during a stream: nothing is lost, nothing leaks."""

import http.client
import json
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.faults.http1 import leave, open_completion
from tests.faults.record import record
from tests.faults.serving import DECODER, faulty_server, metric, wait_until
from tests.serving import ServerProcess

pytestmark = pytest.mark.heavy

WAYS = ("close", "half-close", "reset")
NUM_CLIENTS = 60
NUM_SLOTS = 8


def completion(server: ServerProcess) -> str:
    """The text of a short completion, with a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    body = {"model": DECODER, "prompt": "7,", "max_tokens": 8, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == 200
    text: str = json.loads(answer.read())["choices"][0]["text"]
    connection.close()
    return text


def open_sockets(server: ServerProcess) -> int:
    """Sockets that the server has open, its listeners included."""
    count = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += str(link.readlink()).startswith("socket:")
    return count


def test_clients_that_leave_during_a_stream_free_their_slots(tiny_bundles: Path) -> None:
    options = ("--slots", str(NUM_SLOTS), "--max-queue", "100")
    with faulty_server(tiny_bundles, *options, run_seconds=0.005) as server:
        expected = completion(server)
        # The metrics listener has connections of its own.
        metric(server, "triune_sequences_running", model=DECODER)
        before = open_sockets(server)
        with ExitStack() as stack:
            for number in range(NUM_CLIENTS):
                opened = stack.enter_context(open_completion(server.http_port))
                leave(opened, WAYS[number % len(WAYS)])
            labels = {"method": "/v1/completions", "status": "CANCELLED"}
            wait_until(lambda: metric(server, "triune_requests_total", **labels) == NUM_CLIENTS)
            wait_until(lambda: metric(server, "triune_sequences_running", model=DECODER) == 0)
            assert metric(server, "triune_sequences_waiting", model=DECODER) == 0
            assert completion(server) == expected
        wait_until(lambda: open_sockets(server) <= before)
        record(
            5,
            "HTTP clients close, half-close or reset their connection during a stream",
            "the slot is freed and the connection closed; others are served as before",
            clients=NUM_CLIENTS,
            cancelled=int(metric(server, "triune_requests_total", **labels)),
            slots_leaked=int(metric(server, "triune_sequences_running", model=DECODER)),
            sockets_leaked=max(0, open_sockets(server) - before),
        )
