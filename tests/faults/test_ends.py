"""How a server ends: its engine dies, it is asked to stop, it is asked twice."""

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
from tests.faults.serving import DECODER, LONG, code_of, faulty_server
from tests.serving import ServerProcess

pytestmark = pytest.mark.heavy

SLOW = 0.01
NUM_CLIENTS = 6


@contextmanager
def watched(server: ServerProcess) -> Iterator[list[tuple[float, int]]]:
    """The health that a watcher is told, each with when."""
    told: list[tuple[float, int]] = []
    serving = threading.Event()
    with grpc.insecure_channel(server.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def watch() -> None:
            try:
                for answer in stub.Watch(health_pb2.HealthCheckRequest(service="")):
                    told.append((time.monotonic(), answer.status))
                    serving.set()
            except grpc.RpcError:
                return

        thread = threading.Thread(target=watch)
        thread.start()
        assert serving.wait(60)
        yield told
        channel.close()
        thread.join()


def test_a_dead_engine_ends_its_calls_and_the_process(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, run_seconds=SLOW) as server,
        Client(server.target, timeout_seconds=60) as client,
        watched(server) as health,
    ):
        streams = [client.generate_stream(DECODER, f"{number},", **LONG) for number in range(3)]
        for stream in streams:
            next(stream)
        started = time.monotonic()
        assert code_of(lambda: client.generate(DECODER, DIES)) == grpc.StatusCode.UNAVAILABLE
        detected = time.monotonic() - started
        codes = {code_of(partial(list, stream)) for stream in streams}
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


def test_sigterm_under_load_loses_nothing(tiny_bundles: Path) -> None:
    """Clients ask one after the other; each stream that began has to end well."""
    with faulty_server(tiny_bundles, "--slots", "4", run_seconds=SLOW) as server:
        begun, done = [0] * NUM_CLIENTS, [0] * NUM_CLIENTS
        refused: list[grpc.StatusCode | None] = [None] * NUM_CLIENTS
        ready = threading.Barrier(NUM_CLIENTS + 1)

        def ask(number: int) -> None:
            with Client(server.target, timeout_seconds=60) as client:
                while True:
                    stream = client.generate_stream(
                        DECODER, "1,", max_new_tokens=30, ignore_eos=True, token_ids=True
                    )
                    try:
                        tokens = len(next(stream).token_ids)
                    except TriuneError as error:
                        refused[number] = error.code
                        return
                    begun[number] += 1
                    if begun[number] == 3:
                        ready.wait(60)
                    tokens += sum(len(piece.token_ids) for piece in stream)
                    done[number] += tokens == 30

        threads = [threading.Thread(target=ask, args=[n]) for n in range(NUM_CLIENTS)]
        with watched(server) as health:
            for thread in threads:
                thread.start()
            ready.wait(60)
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join(60)
            assert server.process.wait(timeout=60) == 0
            drained = time.monotonic() - started
    assert done == begun
    # A call that comes while the listener closes is cancelled by gRPC itself.
    assert set(refused) <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert health[-1][1] == health_pb2.HealthCheckResponse.NOT_SERVING
    assert drained < 20, "who watches the health does not hold the server up"
    record(
        10,
        "SIGTERM under load",
        "`NOT_SERVING` first, new calls are refused, accepted calls finish, exit status 0",
        accepted=sum(begun),
        accepted_but_lost=sum(begun) - sum(done),
        seconds_to_drain=drained,
    )


def test_what_is_left_after_the_grace_period_is_cancelled(tiny_bundles: Path) -> None:
    with faulty_server(tiny_bundles, "--grace", "0.3", run_seconds=0.1) as server:
        with Client(server.target, timeout_seconds=60) as client:
            stream = client.generate_stream(DECODER, "1,", **LONG)
            next(stream)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(TriuneError) as caught:
                list(stream)
        assert caught.value.code in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        assert server.process.wait(timeout=60) == 0


def test_a_second_signal_ends_it_at_once(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, run_seconds=0.1) as server,
        Client(server.target, timeout_seconds=60) as client,
        watched(server) as health,
    ):
        stream = client.generate_stream(DECODER, "1,", **LONG)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        while len(health) < 2:  # the first one was seen
            next(stream)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 1
        with pytest.raises(TriuneError):
            list(stream)
