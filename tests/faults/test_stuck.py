"""A run that never returns: callers learn it, and the process exits. A stopped process goes on."""

import os
import signal
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.sync import Client
from server.frontends.grpc.health_watch import LIVENESS
from tests.faults.faulty_server import HANGS
from tests.faults.record import record
from tests.faults.serving import DECODER, LONG, faulty_server, status_of
from tests.faults.test_shutdown import watch_health
from tests.serving import ServerProcess

pytestmark = pytest.mark.heavy

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
STUCK_SECONDS = 1.0


def test_hanging_run_fails_its_calls_and_exits(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, "--stuck-seconds", str(STUCK_SECONDS)) as server,
        Client(server.target, timeout_seconds=60) as client,
        watch_health(server) as health,
        watch_health(server, LIVENESS) as liveness,
    ):
        client.generate(DECODER, "1,", max_new_tokens=30)  # the usual time is known
        started = time.monotonic()
        assert status_of(lambda: client.generate(DECODER, HANGS)) == grpc.StatusCode.UNAVAILABLE
        detected = time.monotonic() - started
        assert server.process.wait(timeout=60) == 1
        ended = time.monotonic() - started
        assert server.process.stderr is not None
        log = server.process.stderr.read()
    assert "lane 0 is stuck: a run of tiny-decoder has not returned" in log
    assert "faulty_server.py" in log, "the stack of the hanging thread"
    assert "most recent call first" in log
    for statuses in (health, liveness):
        assert [status for _, status in statuses] == [SERVING, NOT_SERVING]
    record(
        9,
        "a model run never returns",
        "calls in flight end with `UNAVAILABLE`, health and liveness are `NOT_SERVING`, the stacks "
        "of all threads are in the log, exit status 1",
        stuck_seconds=STUCK_SECONDS,
        milliseconds_to_tell_callers=1000 * detected,
        milliseconds_to_exit=1000 * ended,
    )


def test_stopped_process_continues(tiny_bundles: Path) -> None:
    """A stop of five times the limit during a run does not count as a hanging run."""
    stopped_seconds = 5 * STUCK_SECONDS
    options = ("--stuck-seconds", str(STUCK_SECONDS))
    with (
        faulty_server(tiny_bundles, *options, run_seconds=0.02) as server,
        Client(server.target, timeout_seconds=60) as client,
        grpc.insecure_channel(server.target) as channel,
    ):
        stream = client.generate_stream(DECODER, "1,", **LONG)
        tokens = len(next(stream).token_ids)
        _stop_for(server, stopped_seconds)
        tokens += sum(len(chunk.token_ids) for chunk in stream)
        assert tokens == LONG["max_new_tokens"]
        request = health_pb2.HealthCheckRequest(service=LIVENESS)
        assert health_pb2_grpc.HealthStub(channel).Check(request, timeout=60).status == SERVING
        assert server.process.poll() is None
    record(
        9,
        "the process is stopped and continued (`SIGSTOP`, `SIGCONT`)",
        "the watchdog does not count the stop; the stream goes on",
        stuck_seconds=STUCK_SECONDS,
        stopped_seconds=stopped_seconds,
        tokens_lost=LONG["max_new_tokens"] - tokens,
    )


def _stop_for(server: ServerProcess, seconds: float) -> None:
    """Stops the whole process for some seconds: the fault itself, not a wait for an event."""
    server.process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(server.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    signal.sigtimedwait([], seconds)
    server.process.send_signal(signal.SIGCONT)
