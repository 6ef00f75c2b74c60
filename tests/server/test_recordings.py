"""Receiving recordings: joined in order, bounded in bytes and in time, given back at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from protos.triune.v1 import transcription_pb2 as pb
from server.bounds import MAX_AUDIO_BYTES
from server.errors import InvalidArgumentError, Limit, OverloadedError, ServeError, SlowSenderError
from server.frontends.grpc.recordings import IncomingRecording, ReceivedBytes

Request = pb.TranscribeStreamRequest
FIRST = Request(model="m", audio=b"ab", options=pb.TranscriptionOptions(language="en"), priority=3)


async def sent(*messages: Request) -> AsyncIterator[Request]:
    for message in messages:
        copy = Request()
        copy.CopyFrom(message)
        yield copy


async def stalled(*messages: Request) -> AsyncIterator[Request]:
    async for message in sent(*messages):
        yield message
    await asyncio.Event().wait()


async def receive(
    messages: AsyncIterator[Request], held: ReceivedBytes, *, client: str = "", seconds: float = 60
) -> bytes:
    recording = IncomingRecording(messages, held, seconds)
    await recording.first()
    async with recording.received(client) as audio:
        assert held.num_bytes == len(audio)
        return audio


async def error_of(messages: AsyncIterator[Request], *, seconds: float = 60) -> ServeError:
    held = ReceivedBytes()
    with pytest.raises(ServeError) as caught:
        await receive(messages, held, seconds=seconds)
    assert held.num_bytes == 0
    return caught.value


async def test_the_first_message_is_returned_without_its_audio() -> None:
    recording = IncomingRecording(sent(FIRST, Request(audio=b"c")), ReceivedBytes())
    first = await recording.first()
    assert (first.model, first.options.language, first.priority) == ("m", "en", 3)
    assert first.audio == b""


@pytest.mark.parametrize(
    "messages",
    [
        [FIRST],
        [Request(model="m"), Request(audio=b"a"), Request(), Request(audio=b"b")],
        [Request(model="m", audio=b"a"), Request(audio=b"b")],
    ],
)
async def test_the_audio_is_that_of_all_messages_in_order(messages: list[Request]) -> None:
    held = ReceivedBytes()
    assert await receive(sent(*messages), held) == b"ab"
    assert held.num_bytes == 0


async def test_a_stream_without_messages_is_an_empty_recording() -> None:
    assert await receive(sent(), ReceivedBytes()) == b""


async def test_a_recording_has_a_largest_size() -> None:
    part = Request(audio=bytes(MAX_AUDIO_BYTES // 8))
    assert len(await receive(sent(*[part] * 8), ReceivedBytes())) == MAX_AUDIO_BYTES
    error = await error_of(sent(*[part] * 8, Request(audio=b"1")))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "audio"


@pytest.mark.parametrize(
    ("field", "later"),
    [
        ("model", Request(model="m")),
        ("version", Request(version="1")),
        ("options", Request(options=pb.TranscriptionOptions())),
        ("priority", Request(priority=-1)),
    ],
)
async def test_only_the_first_message_has_other_fields(field: str, later: Request) -> None:
    error = await error_of(sent(FIRST, later))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == field


@pytest.mark.parametrize("messages", [[], [FIRST], [FIRST, Request(audio=b"c")]])
async def test_a_client_that_stalls_ends_its_own_call(messages: list[Request]) -> None:
    error = await error_of(stalled(*messages), seconds=0.01)
    assert isinstance(error, SlowSenderError)


async def test_an_error_of_the_first_message_is_raised_where_the_call_is_counted() -> None:
    async def malformed() -> AsyncIterator[Request]:
        raise InvalidArgumentError("request", "is malformed")
        yield FIRST

    recording = IncomingRecording(malformed(), ReceivedBytes())
    assert await recording.first() == Request()
    with pytest.raises(InvalidArgumentError, match="is malformed"):
        async with recording.received(""):
            pass


async def test_a_client_has_at_most_half_of_the_memory() -> None:
    held = ReceivedBytes(limit=8)
    async with AsyncExitStack() as stack:

        async def hold(client: str, size: int) -> None:
            recording = IncomingRecording(sent(Request(audio=bytes(size))), held)
            await recording.first()
            await stack.enter_async_context(recording.received(client))

        await hold("greedy", 4)
        for client, size in (("greedy", 1), ("other", 5)):
            with pytest.raises(OverloadedError) as caught:
                await hold(client, size)
            assert caught.value.limit == Limit.RECEIVED_MEMORY
        await hold("other", 3)
        assert held.num_bytes == 7
        with pytest.raises(OverloadedError):
            await hold("third", 2)
        await hold("third", 1)
    assert held.num_bytes == 0
