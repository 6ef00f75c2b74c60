"""OpenAI's calls for speech, by its own client, against the same call by gRPC."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from client.sync import Client
from client.transcription import TranscribeResult
from server.bounds import MAX_AUDIO_BYTES
from server.frontends.http.openai.audio import LIMITS
from tests.frontends.conftest import DECODER
from tests.recordings import tone, wav
from tests.serving import ServerProcess, server_process

MODEL, ENGLISH = "speech", "speech-en"
AUDIO = wav(tone(3.0, 16_000))
FILE = ("recording.wav", AUDIO, "audio/wav")
PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
GIVEN: dict[str, Any] = {"model": MODEL, "file": FILE, "language": "de"}


@pytest.fixture(scope="module")
def server(
    speech_bundles: Path, tiny_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("speech")
    for name in (MODEL, ENGLISH):
        shutil.copytree(speech_bundles / name, folder / name)
    shutil.copytree(tiny_bundles / DECODER, folder / DECODER)
    with server_process(folder, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: ServerProcess) -> TranscribeResult:
    with Client(server.target, timeout_seconds=60) as ours:
        return ours.transcribe(MODEL, AUDIO, language="de")


def test_a_transcription_is_that_of_grpc(client: openai.OpenAI, expected: TranscribeResult) -> None:
    answer: Any = client.audio.transcriptions.create(**GIVEN)
    assert answer.text == expected.text != ""
    assert (answer.usage.type, answer.usage.seconds) == ("duration", 3.0)
    text: Any = client.audio.transcriptions.create(response_format="text", **GIVEN)
    assert text == f"{expected.text}\n"


def test_subtitles_have_all_segments(client: openai.OpenAI, expected: TranscribeResult) -> None:
    srt: Any = client.audio.transcriptions.create(response_format="srt", **GIVEN)
    vtt: Any = client.audio.transcriptions.create(response_format="vtt", **GIVEN)
    assert srt.startswith("1\n00:00:00,")
    assert vtt.startswith("WEBVTT\n\n00:00:00.")
    for text in (srt, vtt):
        assert text.count(" --> ") == len(expected.segments) > 1


def test_verbose_json_has_the_segments(client: openai.OpenAI, expected: TranscribeResult) -> None:
    answer = client.audio.transcriptions.create(
        response_format="verbose_json", timestamp_granularities=["segment"], **GIVEN
    )
    assert (answer.text, answer.language, answer.duration) == (expected.text, "german", 3.0)
    assert answer.words is None
    segments = answer.segments or []
    for index, (one, other) in enumerate(zip(segments, expected.segments, strict=True)):
        assert (one.id, one.text, tuple(one.tokens)) == (index, other.text, other.token_ids)
        assert [one.start, one.end, one.temperature] == pytest.approx(
            [other.start_seconds, other.end_seconds, other.temperature], abs=1e-3
        )
        assert [one.avg_logprob, one.compression_ratio, one.no_speech_prob] == pytest.approx(
            [other.mean_logprob, other.compression_ratio, other.no_speech_probability], rel=1e-5
        )
        assert one.seek == pytest.approx(100 * one.start)
    default = client.audio.transcriptions.create(response_format="verbose_json", **GIVEN)
    assert default == answer


@pytest.mark.slow
def test_words_have_their_times(client: openai.OpenAI, server: ServerProcess) -> None:
    with Client(server.target, timeout_seconds=60) as ours:
        expected = ours.transcribe(MODEL, AUDIO, language="de", word_timestamps=True)
    options: dict[str, Any] = {**GIVEN, "response_format": "verbose_json"}
    answer: Any = client.audio.transcriptions.create(timestamp_granularities=["word"], **options)
    words = [word for segment in expected.segments for word in segment.words]
    assert [word.word for word in answer.words] == [word.text.strip() for word in words] != []
    for one, other in zip(answer.words, words, strict=True):
        assert [one.start, one.end] == pytest.approx(
            [other.start_seconds, other.end_seconds], abs=1e-3
        )
    assert answer.segments is None
    both: Any = client.audio.transcriptions.create(
        timestamp_granularities=["word", "segment"], **options
    )
    assert (both.words, len(both.segments)) == (answer.words, len(expected.segments))
    *deltas, _ = client.audio.transcriptions.create(
        timestamp_granularities=["word"], stream=True, **options
    )
    streamed = [word for event in deltas for word in event.segment.get("words", ())]
    assert streamed == [word.model_dump() for word in both.words]


def test_a_stream_ends_with_the_whole(client: openai.OpenAI, expected: TranscribeResult) -> None:
    events: list[Any] = list(client.audio.transcriptions.create(stream=True, **GIVEN))
    *deltas, done = events
    assert [event.type for event in deltas] == ["transcript.text.delta"] * len(expected.segments)
    assert "".join(event.delta for event in deltas) == done.text == expected.text
    assert done.type == "transcript.text.done"
    usage = done.usage
    assert (usage.input_tokens, usage.output_tokens) == (
        *(expected.usage.input_tokens, expected.usage.output_tokens),
    )
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


@pytest.mark.slow
def test_a_verbose_stream_has_the_segments(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {**GIVEN, "response_format": "verbose_json"}
    whole: Any = client.audio.transcriptions.create(**options)
    *deltas, done = list[Any](client.audio.transcriptions.create(stream=True, **options))
    assert [event.segment for event in deltas] == [
        segment.model_dump(exclude_unset=True) for segment in whole.segments
    ]
    assert (done.language, done.duration, done.task) == ("german", 3.0, "transcribe")


async def test_the_async_client(
    async_client: openai.AsyncOpenAI, expected: TranscribeResult
) -> None:
    stream: Any = await async_client.audio.transcriptions.create(stream=True, **GIVEN)
    events = [event async for event in stream]
    assert events[-1].text == expected.text


def test_a_stream_of_events_ends_as_other_streams(http: httpx2.Client) -> None:
    answer = http.post(PATHS[0], data={"model": MODEL, "stream": "true"}, files={"file": FILE})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["type"] for event in events[:-2])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:deprecated")
def test_translations_are_english(client: openai.OpenAI, server: ServerProcess) -> None:
    with Client(server.target, timeout_seconds=60) as ours:
        expected = ours.transcribe(MODEL, AUDIO, translate=True)
    assert client.audio.translations.create(model=MODEL, file=FILE).text == expected.text
    verbose: Any = client.audio.translations.create(
        model=MODEL, file=FILE, response_format="verbose_json"
    )
    assert (verbose.task, verbose.language) == ("translate", "english")
    assert len(verbose.segments) == len(expected.segments)
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.translations.create(model=ENGLISH, file=FILE)
    assert caught.value.param == "model"


def test_temperatures(client: openai.OpenAI, expected: TranscribeResult) -> None:
    def at(temperature: float) -> Any:
        return client.audio.transcriptions.create(
            temperature=temperature, response_format="verbose_json", **GIVEN
        )

    assert at(0).text == expected.text
    assert {segment.temperature for segment in at(0.5).segments} == {0.5}


@pytest.mark.slow
def test_prompts_beams_and_priorities(client: openai.OpenAI, server: ServerProcess) -> None:
    options: dict[str, Any] = {"language": "fr", "prompt": "Triune", "beam_size": 2}
    with Client(server.target, timeout_seconds=60) as ours:
        expected = ours.transcribe(MODEL, AUDIO, **options)
    answer = client.audio.transcriptions.create(
        model=MODEL,
        file=FILE,
        language="fr",
        prompt="Triune",
        chunking_strategy="auto",
        extra_body={"beam_size": 2, "priority": -3},
    )
    assert answer.text == expected.text


def test_models_tell_what_they_hear(http: httpx2.Client) -> None:
    found = {each["id"]: each.get("audio") for each in http.get("/v1/models").json()["data"]}
    audio = {"sample_rate": 16_000, "window_seconds": 2.0}
    assert found == {
        MODEL: {**audio, "languages": ["en", "de", "fr"]},
        ENGLISH: {**audio, "languages": []},
        DECODER: None,
    }


def form(*fields: tuple[str, Any]) -> Any:
    """The parts of a form, in order; a field that is no text is a file."""
    return [(name, (None, value) if isinstance(value, str) else value) for name, value in fields]


TEXTS = (("model", MODEL), ("file", FILE))
FORMS: dict[str, tuple[Any, str, str]] = {
    "no file": (form(("model", MODEL)), "file", "is required"),
    "no model": (form(("file", FILE)), "model", "is required"),
    "a file without a name": (form(("model", MODEL), ("file", "a.wav")), "file", "no filename"),
    "an empty file": (form(("model", MODEL), ("file", ("a", b""))), "file", "is not one of"),
    "no recording": (form(("model", MODEL), ("file", ("a", b"abc"))), "file", "is not one of"),
    "half a recording": (form(("model", MODEL), ("file", ("a", AUDIO[:30]))), "file", "recording"),
    "two files": (form(*TEXTS, ("file", FILE)), "file", "given twice"),
    "two models": (form(*TEXTS, ("model", MODEL)), "model", "given twice"),
    "a model as a file": (form(("model", FILE), ("file", FILE)), "model", "is a file"),
    "a list of models": (form(*TEXTS, ("model[]", MODEL)), "model", "given twice"),
    "an unknown field": (form(*TEXTS, ("colour", "red")), "colour", "is not supported"),
    "an unsupported field": (form(*TEXTS, ("include[]", "logprobs")), "include", "not supported"),
    "chunks": (form(*TEXTS, ("chunking_strategy", "{}")), "chunking_strategy", "nvalid"),
    "language": (form(*TEXTS, ("language", "xx")), "language", "'xx' is not a language"),
    "prompt": (form(*TEXTS, ("prompt", "x" * 4097)), "prompt", "more than 4096 bytes"),
    "much text": (form(*TEXTS, ("prompt", "x" * 70_000)), "prompt", "beyond 65536 bytes"),
    "not UTF-8": (form(*TEXTS, ("prompt", (None, b"\xff"))), "prompt", "is not UTF-8"),
    "format": (form(*TEXTS, ("response_format", "xml")), "response_format", "'xml' is not one of"),
    "a line": (form(*TEXTS, ("response_format", "a\nb")), "response_format", "'a\\nb' is not"),
    "temperature": (form(*TEXTS, ("temperature", "1.5")), "temperature", "1.5 is not in"),
    "no number": (form(*TEXTS, ("temperature", "hot")), "temperature", "expected float"),
    "NaN": (form(*TEXTS, ("temperature", "nan")), "temperature", "nan"),
    "words": (
        form(*TEXTS, ("timestamp_granularities[]", "word")),
        "timestamp_granularities",
        "needs the response_format verbose_json",
    ),
    "granularity": (
        form(*TEXTS, ("timestamp_granularities[]", "line")),
        "timestamp_granularities",
        "'line' is neither",
    ),
    "stream": (form(*TEXTS, ("stream", "perhaps")), "stream", "expected bool"),
    "streamed subtitles": (
        form(*TEXTS, ("stream", "true"), ("response_format", "vtt")),
        "response_format",
        "vtt is not streamed",
    ),
    "beams": (form(*TEXTS, ("beam_size", "0")), "beam_size", "0 is not in"),
    "many fields": (form(*TEXTS, *(("x", "y") for _ in range(70))), "body", "more than 64 fields"),
    "a model of texts": (form(("model", DECODER), ("file", FILE)), "model", "does not answer"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("files", "field", "reason"), FORMS.values(), ids=FORMS)
def test_errors_name_the_field(
    http: httpx2.Client, path: str, files: Any, field: str, reason: str
) -> None:
    answer = http.post(path, files=files)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert error["message"].startswith(f"{field}: ")
    assert reason in error["message"]
    assert error["message"].isprintable()


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "multipart/mixed"])
def test_other_bodies_are_refused(http: httpx2.Client, content_type: str) -> None:
    answer = http.post(PATHS[0], content=b"{}", headers={"content-type": content_type})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "body: is not multipart/form-data"


def test_unknown_models(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.audio.transcriptions.create(model="whisper-1", file=FILE)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_errors_of_the_recording_come_before_a_stream(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model=MODEL, file=("a", b"RIFF"), stream=True)
    assert caught.value.param == "file"


def test_large_bodies(http: httpx2.Client) -> None:
    """Larger ones than those of other routes are accepted, up to the size of a recording."""
    data = {"model": MODEL}
    largest = http.post(PATHS[0], data=data, files={"file": ("a", bytes(MAX_AUDIO_BYTES))})
    assert "is not one of" in largest.json()["error"]["message"]
    too_large = http.post(PATHS[0], data=data, files={"file": ("a", bytes(MAX_AUDIO_BYTES + 1))})
    assert (too_large.status_code, too_large.json()["error"]["param"]) == (400, "file")
    refused = http.post(PATHS[0], data=data, files={"file": ("a", bytes(LIMITS.max_bytes))})
    assert refused.status_code == 413
