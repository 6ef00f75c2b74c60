"""The recording of a request: decoded in threads, with limits of length, memory and time."""

import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from model.audio import decode_audio
from model.audio_config import AudioSpec
from server.bounds import MAX_AUDIO_BYTES
from server.errors import DeadlineError, InvalidArgumentError, Limit, OverloadedError
from server.service import audio
from server.service.audio import decoded_audio
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.decoded_memory import DecodedMemory
from server.service.threads import FairExecutor
from tests.recordings import encoded, tone, wav

RATE = 16_000
SPEC = AudioSpec(sample_rate=RATE, num_samples=30 * RATE, num_tokens=1500)
CALLER = Caller("a client", None)
BLOCK_BYTES = 10 * RATE * 2


@pytest.fixture
async def context() -> AsyncIterator[ServiceContext]:
    """What decoding needs of a server."""
    with ThreadPoolExecutor(1) as pool:
        parts = SimpleNamespace(
            threads=FairExecutor(pool, 1, 10), decoded_memory=DecodedMemory(7 * BLOCK_BYTES)
        )
        yield cast(ServiceContext, parts)


async def refusal(data: bytes, context: ServiceContext) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        async with decoded_audio(data, SPEC, context, CALLER):
            pass
    assert caught.value.field == "audio"
    assert context.decoded_memory.num_bytes == 0
    return caught.value.description


async def test_samples_and_their_memory(context: ServiceContext) -> None:
    data = encoded("mp3", tone(25, 44_100), 44_100)
    async with decoded_audio(data, SPEC, context, CALLER) as samples:
        np.testing.assert_array_equal(samples, decode_audio(data, RATE))
        num_bytes = context.decoded_memory.num_bytes - len(data)
        assert samples.nbytes <= num_bytes <= samples.nbytes + BLOCK_BYTES
    assert context.decoded_memory.num_bytes == 0


async def test_bad_recordings_are_refused(context: ServiceContext) -> None:
    assert "is not one of WAV" in await refusal(b"text", context)
    assert await refusal(wav(tone(1, RATE))[:30], context) == "the recording is damaged"
    assert await refusal(wav(tone(0, RATE)), context) == "the recording is empty"
    assert "at most 26214400" in await refusal(bytes(MAX_AUDIO_BYTES + 1), context)


async def test_long_recordings_are_refused(
    context: ServiceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio, "MAX_AUDIO_SECONDS", 12)
    reason = "lasts more than 12 seconds, which are the most"
    assert await refusal(encoded("flac", tone(13, RATE), RATE), context) == reason
    assert await refusal(encoded("mp3", tone(13, RATE), RATE), context) == reason  # claims nothing
    async with decoded_audio(wav(tone(12, RATE)), SPEC, context, CALLER) as samples:
        assert len(samples) == 12 * RATE


async def test_recordings_share_the_memory_of_all_calls(context: ServiceContext) -> None:
    data = wav(tone(25, RATE))
    async with decoded_audio(data, SPEC, context, CALLER):
        reserved = context.decoded_memory.num_bytes
        with pytest.raises(OverloadedError) as caught:
            async with decoded_audio(data, SPEC, context, CALLER):
                pass
        assert caught.value.limit == Limit.DECODED_MEMORY
        assert context.decoded_memory.num_bytes == reserved > 2 * BLOCK_BYTES
    async with decoded_audio(data, SPEC, context, CALLER):
        pass


async def test_a_deadline_ends_the_decoding(context: ServiceContext) -> None:
    late = Caller("a client", time.monotonic())
    with pytest.raises(DeadlineError):
        async with decoded_audio(wav(tone(1, RATE)), SPEC, context, late):
            pass
    assert context.decoded_memory.num_bytes == 0
