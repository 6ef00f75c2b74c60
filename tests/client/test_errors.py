"""The error of a failed call has all details that the server sent, in both clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from client.aio import AsyncClient
from client.errors import FieldViolation, TriuneError
from client.sync import Client
from client.types import Piece
from tests.client.failing_server import Failure, failing_server

BAD_TOP_P = Failure(
    grpc.StatusCode.INVALID_ARGUMENT,
    "bad request",
    (
        error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(
                    field="sampling.top_p", description="must be in (0, 1]"
                )
            ]
        ),
        error_details_pb2.ErrorInfo(reason="INVALID_FIELD", domain="triune"),
    ),
)
NO_SUCH_OPTION: Any = {"nope": 1}
FULL = Failure(
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    "queue full",
    (error_details_pb2.RetryInfo(retry_delay=Duration(nanos=250_000_000)),),
)


def test_field_violations_and_reason() -> None:
    with (
        failing_server(BAD_TOP_P) as server,
        Client(server.target) as client,
        pytest.raises(TriuneError) as caught,
    ):
        client.embed("m", "text")
    error = caught.value
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.message == "bad request"
    assert error.violations == (FieldViolation("sampling.top_p", "must be in (0, 1]"),)
    assert error.reason == "INVALID_FIELD"
    assert error.retry_delay_seconds is None
    assert str(error) == "INVALID_ARGUMENT: bad request; sampling.top_p: must be in (0, 1]"


def test_a_violation_in_the_message_is_not_repeated() -> None:
    error = TriuneError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "inputs[0]: is empty",
        violations=(FieldViolation("inputs[0]", "is empty"),),
    )
    assert str(error) == "INVALID_ARGUMENT: inputs[0]: is empty"


async def test_retry_delay_asyncio() -> None:
    with failing_server(FULL) as server:
        async with AsyncClient(server.target) as client:
            with pytest.raises(TriuneError) as caught:
                await client.embed("m", "text")
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.retry_delay_seconds == 0.25
    assert str(caught.value) == "RESOURCE_EXHAUSTED: queue full; retry in 0.25 s"


def test_error_of_a_stream_after_its_first_piece() -> None:
    with (
        failing_server(FULL, pieces_before_failure=2) as server,
        Client(server.target) as client,
    ):
        pieces = client.generate_stream("m", "text")
        assert [next(pieces).text, next(pieces).text] == ["a", "a"]
        with pytest.raises(TriuneError, match="queue full"):
            next(pieces)


async def test_error_of_a_stream_asyncio() -> None:
    with failing_server(BAD_TOP_P) as server:
        async with AsyncClient(server.target) as client:
            with pytest.raises(TriuneError) as caught:
                await anext(client.generate_stream("m", "text"))
    assert caught.value.violations[0].field == "sampling.top_p"


def test_details_that_cannot_be_parsed_are_ignored() -> None:
    garbled = Failure(grpc.StatusCode.INTERNAL, "it broke", details_bytes=b"\xff\xff\xff")
    with (
        failing_server(garbled) as server,
        Client(server.target) as client,
        pytest.raises(TriuneError, match=r"^INTERNAL: it broke$"),
    ):
        client.embed("m", "text")


def test_an_exceeded_deadline() -> None:
    with (
        failing_server(is_silent=True) as server,
        Client(server.target, timeout_seconds=0.05) as client,
        pytest.raises(TriuneError) as caught,
    ):
        client.embed("m", "text")
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_no_server() -> None:
    with failing_server() as server:
        stopped = server.target
    with Client(stopped, timeout_seconds=5) as client, pytest.raises(TriuneError) as caught:
        client.list_models()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert "\n" not in str(caught.value)


def test_embed_stream_raises_the_error_of_its_batches() -> None:
    def batches() -> Iterator[str]:
        yield "text"
        raise LookupError("no more texts")

    with failing_server() as server, Client(server.target) as client:
        with pytest.raises(LookupError, match="no more texts"):
            list(client.embed_stream("m", batches()))
        with pytest.raises(TypeError, match="no such option: nope"):
            list(client.embed_stream("m", ["text"], **NO_SUCH_OPTION))


async def test_embed_stream_raises_the_error_of_its_batches_asyncio() -> None:
    async def batches(*, fails: bool) -> AsyncIterator[str]:
        yield "text"
        if fails:
            raise LookupError("no more texts")

    with failing_server() as server:
        async with AsyncClient(server.target) as client:
            with pytest.raises(LookupError, match="no more texts"):
                [part async for part in client.embed_stream("m", batches(fails=True))]
            stream = client.embed_stream("m", batches(fails=False), **NO_SUCH_OPTION)
            with pytest.raises(TypeError, match="no such option: nope"):
                [part async for part in stream]


async def test_a_cancelled_task_ends_its_embed_stream_as_cancelled() -> None:
    waits = asyncio.Event()

    async def batches() -> AsyncIterator[str]:
        yield "text"
        waits.set()
        await asyncio.Event().wait()

    with failing_server() as server:
        async with AsyncClient(server.target) as client:
            stream = client.embed_stream("m", batches())
            assert (await anext(stream)).id == 0
            task = asyncio.ensure_future(anext(stream))
            await waits.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_close_ends_calls_with_an_error_and_cancels_no_task_asyncio() -> None:
    async def pieces(client: AsyncClient) -> list[Piece]:
        return [piece async for piece in client.generate_stream("m", "text")]

    with failing_server(is_silent=True) as server:
        client = AsyncClient(server.target)
        calls: list[Awaitable[object]] = [client.embed("m", "text"), pieces(client)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        for _ in tasks:
            await asyncio.to_thread(server.called.acquire)
        await client.close()
        for task in tasks:
            with pytest.raises(TriuneError) as caught:
                await task
            assert caught.value.code is grpc.StatusCode.CANCELLED
