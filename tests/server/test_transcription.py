"""Transcription through the service, against ``transformers``."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.bundle import AudioSpec
from server.errors import DeadlineError, InvalidArgumentError, OverloadedError
from server.service import transcription_window
from server.service.audio_windows import split_windows, windows_with_sound
from server.service.caller import Caller
from server.service.service import Service
from server.service.transcription_plan import FALLBACK_TEMPERATURES
from server.service.transcription_request import (
    TranscribeRequest,
    TranscribeResult,
    TranscriptionOptions,
)
from server.service.transcription_window import WindowText
from server.service.usage import Usage
from tests.server.in_process_service import service_context
from tests.server.transcription_reference import (
    MAX_LENGTH,
    RATE,
    TOKENIZER,
    Reference,
    Samples,
    noise,
    wav,
)
from tests.speech_models import (
    EOS,
    LANGUAGES,
    START,
    WINDOW_SECONDS,
)

AUDIO = AudioSpec(sample_rate=16_000, num_samples=16_000 * WINDOW_SECONDS, num_tokens=100)
VECTORS = 50 * WINDOW_SECONDS
TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH = (EOS + 2 + len(LANGUAGES) + i for i in (0, 1, 3, 4))
ANYBODY = Caller("anybody", None)
GREEDY = TranscriptionOptions(temperature=0.0, language="en")


def request(
    samples: Samples, options: TranscriptionOptions = GREEDY, model: str = "speech"
) -> TranscribeRequest:
    return TranscribeRequest(model=model, audio=wav(samples), options=options)


@asynccontextmanager
async def served(bundles: Path, **options: Any) -> AsyncIterator[Service]:
    limits = {"num_lanes": 1, "num_threads": 1, "num_slots": 4, "max_length": MAX_LENGTH}
    async with service_context(bundles, **{**limits, **options}) as context:
        yield Service(context)


def transcribed(bundles: Path, *requests: TranscribeRequest) -> list[TranscribeResult]:
    """The results of requests that are made at the same time."""

    async def run() -> list[TranscribeResult]:
        async with served(bundles) as service:
            return await asyncio.gather(*(service.transcribe(one, ANYBODY) for one in requests))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.parametrize(
    ("options", "model", "prompt"),
    [
        (GREEDY, "speech", [START, START + 1, TRANSCRIBE]),
        (
            TranscriptionOptions(temperature=0.0, language="de", translate=True, prompt="Ada"),
            "speech",
            [PREVIOUS, *TOKENIZER.encode(" Ada").ids, START, START + 2, TRANSLATE],
        ),
        (TranscriptionOptions(temperature=0.0), "speech-en", [START]),
    ],
)
def test_tokens_are_those_of_transformers(
    speech_bundles: Path,
    reference: Reference,
    options: TranscriptionOptions,
    model: str,
    prompt: list[int],
) -> None:
    recordings = [noise(seed, 1.9) for seed in range(3)]
    results = transcribed(speech_bundles, *(request(one, options, model) for one in recordings))
    for samples, result in zip(recordings, results, strict=True):
        expected = reference.segments(samples, prompt)
        assert [segment.token_ids for segment in result.segments] == [
            segment.token_ids for segment in expected
        ]
        for segment, reference_segment in zip(result.segments, expected, strict=True):
            times = (segment.start_seconds, segment.end_seconds)
            assert times == pytest.approx(reference_segment[1:])
        no_speech = reference.probability(samples, prompt[: prompt.index(START) + 1], NO_SPEECH)
        assert result.segments[0].no_speech_probability == pytest.approx(no_speech, rel=1e-3)
        assert result.finish.duration_seconds == pytest.approx(1.9)
        assert result.finish.language == (options.language or "en")
        assert result.finish.usage.input_tokens % (VECTORS + len(prompt)) == 0


def test_the_language_is_the_likeliest_one(speech_bundles: Path, reference: Reference) -> None:
    recordings = [noise(seed) for seed in range(4)]
    unknown = TranscriptionOptions(temperature=0.0)
    beams = TranscriptionOptions(temperature=0.0, beam_size=2)
    for options in (unknown, beams):
        results = transcribed(speech_bundles, *(request(one, options) for one in recordings))
        for samples, result in zip(recordings, results, strict=True):
            scores = reference.logits(samples, [START])[0, START + 1 : START + 1 + len(LANGUAGES)]
            probabilities = scores.softmax(-1)
            best = int(probabilities.argmax())
            assert result.finish.language == LANGUAGES[best]
            assert result.finish.language_probability == pytest.approx(
                float(probabilities[best]), rel=1e-3
            )
            if options is unknown:
                known = replace(options, language=LANGUAGES[best])
                (again,) = transcribed(speech_bundles, request(samples, known))
                assert again.segments == result.segments
                assert again.finish.usage == result.finish.usage


def test_windows_do_not_depend_on_each_other(speech_bundles: Path) -> None:
    parts = [noise(seed, 1.95) for seed in range(5)]
    for part in parts:
        part[-2000:] = 0  # where windows are cut
    whole = np.concatenate(parts)
    together, *alone = transcribed(speech_bundles, *map(request, [whole, *parts]))
    windows = split_windows(whole, AUDIO)
    assert len(windows) >= len(parts)
    starts = [segment.start_seconds for segment in together.segments]
    assert starts == sorted(starts)
    cut = [whole[window.start : window.stop] for window in windows]
    alone = transcribed(speech_bundles, *map(request, cut))
    expected = [
        (segment.token_ids, segment.start_seconds + window.start / RATE)
        for window, result in zip(windows, alone, strict=True)
        for segment in result.segments
    ]
    assert [segment.token_ids for segment in together.segments] == [ids for ids, _ in expected]
    assert starts == pytest.approx([start for _, start in expected])
    assert together.finish.usage == Usage.total(result.finish.usage for result in alone)


def test_a_stream_has_the_segments_in_order(speech_bundles: Path) -> None:
    whole = request(noise(0, 9))

    async def run() -> None:
        async with served(speech_bundles) as service:
            result = await service.transcribe(whole, ANYBODY)
            async with aclosing(await service.transcribe_stream(whole, ANYBODY)) as stream:
                chunks = [chunk async for chunk in stream]
        assert len(chunks) > 3
        assert [s for chunk in chunks for s in chunk.segments] == list(result.segments)
        assert [chunk.finish is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
        assert result.text == "".join(segment.text for segment in result.segments).strip()

    asyncio.run(run())


def test_silence_is_not_transcribed(speech_bundles: Path) -> None:
    silence = np.random.default_rng(0).integers(-2, 3, RATE * WINDOW_SECONDS).astype(np.int16)
    unknown = TranscriptionOptions(temperature=0.0)
    quiet, german = (
        request(silence, options) for options in (unknown, replace(unknown, language="de"))
    )
    late = np.concatenate([silence, noise(0, WINDOW_SECONDS)])
    heard = windows_with_sound(late, AUDIO)
    assert heard == split_windows(late, AUDIO)[1:]
    first, second, third, *alone = transcribed(
        speech_bundles,
        quiet,
        german,
        request(late, unknown),
        *(request(late[window.start : window.stop], unknown) for window in heard[:1]),
    )
    for result, language in ((first, ""), (second, "de")):
        assert (result.text, result.segments, result.finish.language) == ("", (), language)
        assert result.finish.duration_seconds == WINDOW_SECONDS
        assert result.finish.usage == Usage()
    assert first.finish.language_probability == 0
    # The first window with sound tells the language.
    assert third.finish.language == alone[0].finish.language
    assert third.finish.language_probability == alone[0].finish.language_probability
    assert third.segments[0].token_ids == alone[0].segments[0].token_ids
    assert third.segments[0].start_seconds >= heard[0].start / RATE


def test_an_implausible_text_is_decoded_at_rising_temperatures(speech_bundles: Path) -> None:
    options = TranscriptionOptions(language="en")
    first, second = transcribed(
        speech_bundles, request(noise(1), options), request(noise(1), options)
    )
    assert first.segments == second.segments
    # The likeliest of all attempts is kept.
    attempts = [
        transcribed(
            speech_bundles, request(noise(1), TranscriptionOptions(temperature=t, language="en"))
        )[0]
        for t in FALLBACK_TEMPERATURES
    ]
    likeliest = max(attempts, key=lambda result: result.segments[0].mean_logprob)
    assert first.segments[0] == likeliest.segments[0]
    (greedy,) = transcribed(speech_bundles, request(noise(1)))
    assert first.finish.usage.output_tokens > 3 * greedy.finish.usage.output_tokens


@pytest.mark.parametrize(
    ("mean_logprob", "ratio", "no_speech", "is_plausible", "is_silent"),
    [
        (-0.5, 1.5, 0.9, True, False),
        (-0.5, 2.5, 0.1, False, False),
        (-1.5, 1.5, 0.1, False, False),
        (-1.5, 1.5, 0.7, False, True),
    ],
)
def test_silence_is_unsure_and_has_no_speech(
    mean_logprob: float, ratio: float, no_speech: float, is_plausible: bool, is_silent: bool
) -> None:
    text = WindowText((), (), False, mean_logprob, ratio, no_speech, 0.0)
    assert (text.is_plausible, text.is_silent) == (is_plausible, is_silent)


def test_silent_windows_have_no_segments(
    speech_bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcription_window, "MAX_NO_SPEECH_PROBABILITY", 0.0)
    (result,) = transcribed(speech_bundles, request(noise(2), TranscriptionOptions()))
    assert result.segments == ()
    assert result.text == ""
    assert result.finish.duration_seconds == WINDOW_SECONDS


@pytest.mark.parametrize(
    ("options", "model", "field"),
    [
        (TranscriptionOptions(language="it"), "speech", "language"),
        (TranscriptionOptions(language="de"), "speech-en", "language"),
        (TranscriptionOptions(translate=True), "speech-en", "translate"),
        (TranscriptionOptions(beam_size=5), "speech", "beam_size"),
        (TranscriptionOptions(temperature=1.5), "speech", "temperature"),
    ],
)
def test_invalid_options_are_named(
    speech_bundles: Path, options: TranscriptionOptions, model: str, field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        transcribed(speech_bundles, request(noise(0), options, model))
    assert caught.value.field == field


def test_closing_a_stream_cancels_its_jobs(speech_bundles: Path) -> None:
    async def run() -> None:
        async with served(speech_bundles, num_slots=2) as service:
            stream = await service.transcribe_stream(request(noise(0, 60)), ANYBODY)
            await anext(stream)
            await stream.aclose()
            assert await service.unload_model("speech")  # waits for the jobs that are left

    asyncio.run(run())


def test_a_deadline_ends_a_call(speech_bundles: Path) -> None:
    async def run() -> None:
        async with served(speech_bundles) as service:
            caller = Caller("anybody", time.monotonic() + 0.2)
            with pytest.raises(DeadlineError):
                await service.transcribe(request(noise(0, 600)), caller)

    asyncio.run(run())


def test_windows_wait_while_the_queue_is_full(speech_bundles: Path) -> None:
    async def run() -> None:
        async with served(speech_bundles, num_slots=2, max_queue=0) as service:
            long = asyncio.create_task(service.transcribe(request(noise(0, 12)), ANYBODY))
            results = []
            while not long.done():
                with suppress(OverloadedError):
                    results.append(await service.transcribe(request(noise(1)), Caller("b", None)))
                await asyncio.sleep(0)
            assert len((await long).segments) > 4

    asyncio.run(run())


@pytest.mark.parametrize("model", ["speech", "speech-en"])
def test_words_are_the_text_of_their_segment(speech_bundles: Path, model: str) -> None:
    options = TranscriptionOptions(temperature=0.0, word_timestamps=True)
    plain = replace(options, word_timestamps=False)
    recording = noise(3, 5)
    result, without = transcribed(
        speech_bundles, request(recording, options, model), request(recording, plain, model)
    )
    assert result.text == without.text
    for segment in result.segments:
        words = segment.words
        assert "".join(word.text for word in words).replace("\ufffd", "") == segment.text.replace(
            "\ufffd", ""
        )
        times = [time for word in words for time in (word.start_seconds, word.end_seconds)]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= 5
        assert all(0 < word.probability <= 1 for word in words)
