"""Only refused calls are retried, as often as the policy says, after the server's delay."""

import grpc
import pytest
import tenacity
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from client.aio import AsyncClient
from client.errors import TriuneError
from client.retry import RetryPolicy, controls
from client.sync import Client
from tests.client.failing_server import Failure, failing_server

AT_ONCE = error_details_pb2.RetryInfo(retry_delay=Duration())
FULL = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", (AT_ONCE,))
GONE = Failure(grpc.StatusCode.UNAVAILABLE, "shutting down", (AT_ONCE,))
BAD = Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", (AT_ONCE,))


def _waits(policy: RetryPolicy, error: TriuneError) -> list[float]:
    """Seconds between attempts that all end with ``error``."""
    waited: list[float] = []

    def fail() -> None:
        raise error

    with pytest.raises(TriuneError):
        tenacity.Retrying(**controls(policy), sleep=waited.append)(fail)
    return waited


def test_refused_calls_are_retried() -> None:
    with (
        failing_server(FULL, GONE) as server,
        Client(server.target, retry=RetryPolicy(attempts=3)) as client,
    ):
        assert client.embed("m", "text").outputs[0].values == (1.0,)
    assert server.num_calls == 3


async def test_refused_calls_are_retried_asyncio() -> None:
    with failing_server(FULL, GONE) as server:
        async with AsyncClient(server.target, retry=RetryPolicy(attempts=3)) as client:
            assert (await client.embed("m", "text")).outputs[0].values == (1.0,)
    assert server.num_calls == 3


def test_the_last_error_is_raised_when_attempts_are_used_up() -> None:
    with (
        failing_server(GONE, FULL, FULL) as server,
        Client(server.target, retry=RetryPolicy(attempts=2)) as client,
        pytest.raises(TriuneError, match="queue full"),
    ):
        client.embed("m", "text")
    assert server.num_calls == 2


def test_without_a_policy_nothing_is_retried() -> None:
    with (
        failing_server(FULL) as server,
        Client(server.target) as client,
        pytest.raises(TriuneError),
    ):
        client.embed("m", "text")
    assert server.num_calls == 1


def test_a_bad_request_is_not_retried() -> None:
    with (
        failing_server(BAD) as server,
        Client(server.target, retry=RetryPolicy(attempts=3)) as client,
        pytest.raises(TriuneError),
    ):
        client.embed("m", "text")
    assert server.num_calls == 1


def test_a_stream_is_retried_before_its_first_piece() -> None:
    with (
        failing_server(FULL) as server,
        Client(server.target, retry=RetryPolicy(attempts=2)) as client,
    ):
        assert [piece.text for piece in client.generate_stream("m", "text")] == ["z"]


async def test_a_stream_is_not_retried_after_its_first_piece() -> None:
    with failing_server(FULL, pieces_before_failure=1) as server:
        async with AsyncClient(server.target, retry=RetryPolicy(attempts=2)) as client:
            pieces = client.generate_stream("m", "text")
            assert (await anext(pieces)).text == "a"
            with pytest.raises(TriuneError):
                await anext(pieces)
    assert server.num_calls == 1


def test_the_server_decides_the_first_and_shortest_wait() -> None:
    full = TriuneError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_delay_seconds=1.5)
    waits = _waits(RetryPolicy(attempts=5), full)
    assert waits[0] == 1.5
    for wait, longest in zip(waits[1:], [3.0, 5.0, 5.0], strict=True):
        assert max(1.5, longest / 2) <= wait <= longest
    slow = TriuneError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_delay_seconds=60.0)
    assert _waits(RetryPolicy(attempts=3), slow) == [60.0, 60.0]


def test_without_a_delay_of_the_server_the_wait_doubles() -> None:
    gone = TriuneError(grpc.StatusCode.UNAVAILABLE, "gone")
    policy = RetryPolicy(attempts=6, initial_seconds=1.0, longest_seconds=4.0)
    waits = _waits(policy, gone)
    for wait, whole in zip(waits, [1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert whole / 2 <= wait <= whole


@pytest.mark.parametrize("seconds", [-5, 1 << 40, 1 << 62])
def test_a_delay_for_which_nobody_can_wait_is_ignored(seconds: int) -> None:
    delay = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=seconds))
    full = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (delay,))
    policy = RetryPolicy(attempts=2, initial_seconds=0.01)
    with failing_server(full) as server, Client(server.target, retry=policy) as client:
        assert client.embed("m", "text").model == "m"
    assert server.num_calls == 2
