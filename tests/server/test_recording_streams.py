"""TranscribeStream calls that are refused, by a real server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from client.aio import AsyncClient
from protos.triune.v1 import inference_pb2_grpc
from protos.triune.v1 import transcription_pb2 as pb
from server.bounds import MAX_AUDIO_BYTES
from server.frontends.grpc import recordings
from tests.faults.serving import metric_at, wait_until
from tests.server.in_process_server import CLASSIFIER, serving
from tests.serving import server_process

Request = pb.TranscribeStreamRequest
PART = bytes(1 << 20)
BAD_OPTION = pb.TranscriptionOptions(temperature=2.0)


@pytest.fixture(scope="module")
def target(tiny_bundles: Path) -> Iterator[str]:
    with server_process(tiny_bundles) as running:
        yield running.target


@pytest.fixture
async def stub(target: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(target) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


async def error_of(stub: Any, *messages: Request) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.TranscribeStream(iter(messages), timeout=60).read()
    return caught.value.code(), str(caught.value.details())


async def sent(*messages: Request) -> AsyncIterator[Request]:
    for message in messages:
        yield message


async def never_ending(*messages: Request) -> AsyncIterator[Request]:
    for message in messages:
        yield message
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("messages", "code", "text"),
    [
        ([], "NOT_FOUND", "model '' is not served"),
        ([Request(model="nobody")], "NOT_FOUND", "model 'nobody' is not served"),
        ([Request(model=CLASSIFIER, audio=PART)], "INVALID_ARGUMENT", "model: "),
        (
            [Request(model=CLASSIFIER, options=BAD_OPTION)],
            "INVALID_ARGUMENT",
            "options.temperature: 2.0 is not in",
        ),
        (
            [Request(model=CLASSIFIER), Request(model=CLASSIFIER)],
            "INVALID_ARGUMENT",
            "model: is only allowed in the first message",
        ),
        (
            [
                Request(model=CLASSIFIER),
                *[Request(audio=PART)] * (MAX_AUDIO_BYTES >> 20),
                *[Request(audio=b"1")],
            ],
            "INVALID_ARGUMENT",
            f"audio: has more than {MAX_AUDIO_BYTES} bytes",
        ),
        (
            [Request(model=CLASSIFIER, audio=bytes(4 << 20))],
            "RESOURCE_EXHAUSTED",
            "larger than max",
        ),
    ],
    ids=["empty", "unknown", "task", "option", "later field", "too large", "large message"],
)
async def test_refused_streams(
    stub: Any,
    messages: list[Request],
    code: str,
    text: str,
) -> None:
    status, details = await error_of(stub, *messages)
    assert status.name == code
    assert text in details.lower() if code == "RESOURCE_EXHAUSTED" else details.startswith(text)


async def test_an_unknown_model_is_refused_before_the_recording_arrives(
    stub: Any,
) -> None:
    call = stub.TranscribeStream(never_ending(Request(model="nobody")), timeout=60)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_stalled_senders_hold_only_their_own_calls(
    tiny_bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the memory is that of one client: another one of its recordings is refused."""
    monkeypatch.setattr(recordings, "MAX_RECEIVED_BYTES", 8 << 20)
    async with serving(tiny_bundles) as running:
        target = f"127.0.0.1:{running.port}"
        url = f"http://127.0.0.1:{running.metrics_port}/metrics"
        async with grpc.aio.insecure_channel(target) as channel, AsyncClient(target) as client:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)

            async def refused(messages: AsyncIterator[Request]) -> str:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.TranscribeStream(messages, timeout=60).read()
                return str(caught.value.code().name)

            first = Request(model=CLASSIFIER, audio=PART)
            stalled = [asyncio.create_task(refused(never_ending(first))) for _ in range(5)]
            done, waiting = await asyncio.wait(stalled, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result() for task in done] == ["RESOURCE_EXHAUSTED"]
            assert len(waiting) == 4
            assert (await client.classify(CLASSIFIER, "12")).outputs
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            # The server sees the end of a cancelled stream before the cancellation.
            ended = partial(metric_at, url, "triune_requests_total", method="TranscribeStream")
            await asyncio.to_thread(wait_until, lambda: ended() == 5, seconds=60)
            # Their memory is free again: the recording is read to its end.
            assert await refused(sent(first)) == "INVALID_ARGUMENT"


async def test_a_sender_has_limited_time(
    tiny_bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "RECEIVE_SECONDS", 0.1)
    async with (
        serving(tiny_bundles) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        for messages in ([], [Request(model=CLASSIFIER, audio=b"RIFF")]):
            call = stub.TranscribeStream(never_ending(*messages), timeout=60)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert caught.value.details() == "the request was not received within 0.1 s"
