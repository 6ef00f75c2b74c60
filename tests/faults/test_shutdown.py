"""Shutdown: engine death, SIGTERM under load, grace period, second signal."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.errors import TriuneError
from client.sync import Client
from tests.faults.faulty_server import DIES
from tests.faults.record import record
from tests.faults.serving import DECODER, LONG, faulty_server, status_of
from tests.serving import ServerProcess

pytestmark = pytest.mark.heavy

SLOW = 0.01
NUM_CLIENTS = 6


@contextmanager
def watch_health(server: ServerProcess, service: str = "") -> Iterator[list[tuple[float, int]]]:
    """Watches the health of ``service``; yields (time, status) of each update."""
    statuses: list[tuple[float, int]] = []
    serving = threading.Event()
    with grpc.insecure_channel(server.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def watch() -> None:
            try:
                for response in stub.Watch(health_pb2.HealthCheckRequest(service=service)):
                    statuses.append((time.monotonic(), response.status))
                    serving.set()
            except grpc.RpcError:
                return

        thread = threading.Thread(target=watch)
        thread.start()
        assert serving.wait(60)
        yield statuses
        channel.close()
        thread.join()


def test_engine_death_fails_its_calls_and_exits(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, run_seconds=SLOW) as server,
        Client(server.target, timeout_seconds=60) as client,
        watch_health(server) as health,
    ):
        streams = [client.generate_stream(DECODER, f"{number},", **LONG) for number in range(3)]
        for stream in streams:
            next(stream)
        started = time.monotonic()
        assert status_of(lambda: client.generate(DECODER, DIES)) == grpc.StatusCode.UNAVAILABLE
        detected = time.monotonic() - started
        codes = {status_of(partial(list, stream)) for stream in streams}
        assert codes == {grpc.StatusCode.UNAVAILABLE}
        assert server.process.wait(timeout=60) == 1
        ended = time.monotonic() - started
    assert [status for _, status in health] == [
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    ]
    record(
        9,
        "the engine thread dies",
        "calls in flight end with `UNAVAILABLE`, health is `NOT_SERVING`, exit status 1",
        milliseconds_to_tell_callers=1000 * detected,
        milliseconds_to_exit=1000 * ended,
    )


def test_sigterm_under_load_completes_accepted_requests(tiny_bundles: Path) -> None:
    """Clients send requests in a loop; each stream that started must complete."""
    with faulty_server(tiny_bundles, "--slots", "4", run_seconds=SLOW) as server:
        num_started, num_completed = [0] * NUM_CLIENTS, [0] * NUM_CLIENTS
        rejections: list[grpc.StatusCode | None] = [None] * NUM_CLIENTS
        ready = threading.Barrier(NUM_CLIENTS + 1)

        def send_requests(number: int) -> None:
            with Client(server.target, timeout_seconds=60) as client:
                while True:
                    stream = client.generate_stream(
                        DECODER, "1,", max_new_tokens=30, ignore_eos=True, token_ids=True
                    )
                    try:
                        tokens = len(next(stream).token_ids)
                    except TriuneError as error:
                        rejections[number] = error.code
                        return
                    num_started[number] += 1
                    if num_started[number] == 3:
                        ready.wait(60)
                    tokens += sum(len(chunk.token_ids) for chunk in stream)
                    num_completed[number] += tokens == 30

        threads = [threading.Thread(target=send_requests, args=[n]) for n in range(NUM_CLIENTS)]
        with watch_health(server) as health:
            for thread in threads:
                thread.start()
            ready.wait(60)
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join(60)
            assert server.process.wait(timeout=60) == 0
            drained = time.monotonic() - started
    assert num_completed == num_started
    assert set(rejections) == {grpc.StatusCode.UNAVAILABLE}
    assert health[-1][1] == health_pb2.HealthCheckResponse.NOT_SERVING
    assert drained < 20, "health watchers do not delay the shutdown"
    record(
        10,
        "SIGTERM under load",
        "`NOT_SERVING` first, new calls are refused, accepted calls finish, exit status 0",
        accepted=sum(num_started),
        accepted_but_lost=sum(num_started) - sum(num_completed),
        seconds_to_drain=drained,
    )


def test_cancels_requests_left_after_the_grace_period(tiny_bundles: Path) -> None:
    with faulty_server(tiny_bundles, "--grace", "0.3", run_seconds=0.1) as server:
        with Client(server.target, timeout_seconds=60) as client:
            stream = client.generate_stream(DECODER, "1,", **LONG)
            next(stream)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(TriuneError) as caught:
                list(stream)
        assert caught.value.code in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        assert server.process.wait(timeout=60) == 0


def test_second_signal_exits_immediately(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, run_seconds=0.1) as server,
        Client(server.target, timeout_seconds=60) as client,
        watch_health(server) as health,
    ):
        stream = client.generate_stream(DECODER, "1,", **LONG)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        while len(health) < 2:  # the first signal was handled
            next(stream)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 1
        with pytest.raises(TriuneError):
            list(stream)
