"""Transcribe and TranscribeStream end to end: small random models, every road to the same text."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from client import transcription_messages
from client.aio import AsyncClient
from client.errors import TriuneError
from client.sync import Client
from tests.recordings import tone, wav
from tests.serving import ServerProcess, server_process

ROOT = Path(__file__).parents[2]
MODEL = "speech"


SMALL = wav(tone(3.0, 16_000))


@pytest.fixture(scope="module")
def server(speech_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(speech_bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def test_a_model_tells_what_it_hears(client: Client) -> None:
    model = client.get_model(MODEL)
    assert model.tasks == ("transcribe",)
    assert model.languages == ("en", "de", "fr")
    assert model.audio is not None
    assert (model.audio.sample_rate, model.audio.window_seconds, model.audio.num_tokens) == (
        *(16_000, 2.0, 100),
    )


def test_a_stream_has_the_segments_of_the_whole(client: Client) -> None:
    whole = client.transcribe(MODEL, SMALL)
    assert whole.duration_seconds == 3.0
    assert whole.language in ("en", "de", "fr")
    assert 0 < whole.language_probability <= 1
    assert whole.usage.input_tokens > 200
    assert [segment.start_seconds for segment in whole.segments] == sorted(
        segment.start_seconds for segment in whole.segments
    )
    pieces = list(client.transcribe_stream(MODEL, SMALL))
    streamed = transcription_messages.joined(pieces)
    assert (streamed.text, streamed.segments) == (whole.text, whole.segments)
    assert (streamed.language, streamed.usage) == (whole.language, whole.usage)
    assert [piece.finish is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_a_given_language_is_certain(client: Client) -> None:
    result = client.transcribe(MODEL, SMALL, language="de")
    assert (result.language, result.language_probability) == ("de", 1.0)


async def test_asyncio_has_the_same_result(server: ServerProcess, client: Client) -> None:
    async with AsyncClient(server.target, timeout_seconds=60) as aio:
        result = await aio.transcribe(MODEL, SMALL, temperature=0.0)
    assert result.segments == client.transcribe(MODEL, SMALL, temperature=0.0).segments


@pytest.mark.parametrize(
    ("audio", "options", "message"),
    [
        (SMALL, {"language": "xx"}, "options.language: 'xx' is not a language of 'speech'"),
        (SMALL, {"temperature": 2.0}, "options.temperature: 2.0 is not in"),
        (SMALL, {"beam_size": 0}, "options.beam_size: 0 is not in"),
        (SMALL, {"prompt": "x" * 4097}, "options.prompt: has more than 4096 bytes"),
        (SMALL, {"priority": 101}, "priority: 101 is not in"),
        (b"", {}, "audio: "),
        (b"nonsense", {}, "audio: the recording is not one of"),
    ],
)
def test_errors_name_the_field(
    client: Client, audio: bytes, options: dict[str, object], message: str
) -> None:
    for call in (
        lambda: client.transcribe(MODEL, audio, **options),  # type: ignore[arg-type]
        lambda: list(client.transcribe_stream(MODEL, audio, **options)),  # type: ignore[arg-type]
    ):
        with pytest.raises(TriuneError) as caught:
            call()
        assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.message.startswith(message)


def test_other_tasks_are_refused(client: Client) -> None:
    for call in (client.generate, client.translate, client.embed):
        with pytest.raises(TriuneError, match=r"model: 'speech' does not answer"):
            call(MODEL, "text")


def test_the_command(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "recording.wav"
    file.write_bytes(SMALL)

    def run(*arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "client", "transcribe", "--model", MODEL, str(file), *arguments],
            cwd=ROOT,
            env={**os.environ, "TRIUNE_TARGET": server.target},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    expected = client.transcribe(MODEL, SMALL, language="fr")
    row = json.loads(run("--language", "fr", "--json"))
    (output,) = row["outputs"]
    assert output["text"] == expected.text
    assert len(output["segments"]) == len(expected.segments)
    assert row["usage"]["output_tokens"] == expected.usage.output_tokens
    assert run("--language", "fr", "--format", "srt").count(" --> ") == len(expected.segments)
