"""Recordings are sent whole or in parts, retried as other calls, and printed as subtitles."""

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from client import transcription_messages as messages
from client.aio import AsyncClient
from client.errors import TriuneError
from client.retry import RetryPolicy
from client.subtitles import srt
from client.sync import Client
from client.transcription import Segment
from protos.triune.v1 import transcription_pb2 as wire
from tests.client.failing_server import Failure, failing_server

ROOT = Path(__file__).parents[2]
SMALL, LARGE = b"RIFF", os.urandom(messages.MAX_UNARY_BYTES + 1)
GONE = Failure(grpc.StatusCode.UNAVAILABLE, "shutting down")
AT_ONCE = RetryPolicy(attempts=2, initial_seconds=0)
TEXT = "Good day <b> --> you."


def test_options_are_in_the_request() -> None:
    request = messages.request(
        "m",
        SMALL,
        {"language": "pt", "temperature": 0.0, "beam_size": None, "version": "2", "priority": 3},
    )
    assert request == wire.TranscribeRequest(
        model="m",
        version="2",
        audio=SMALL,
        priority=3,
        options=wire.TranscriptionOptions(language="pt", temperature=0.0),
    )


def test_only_the_first_part_has_the_options() -> None:
    make = messages.parts("m", LARGE, {"language": "pt", "priority": 3})
    for _ in range(2):  # each attempt sends all parts
        first, *later = make()
        assert (first.model, first.options.language, first.priority) == ("m", "pt", 3)
        assert all([field.name for field, _ in part.ListFields()] == ["audio"] for part in later)
        assert first.audio + b"".join(part.audio for part in later) == LARGE


def test_a_message_with_the_largest_options_is_accepted() -> None:
    request = messages.request("m" * 256, bytes(messages.MAX_UNARY_BYTES), {"prompt": "x" * 4096})
    assert request.ByteSize() <= 4 << 20


@pytest.mark.parametrize("audio", [SMALL, LARGE])
@pytest.mark.parametrize("failures", [[], [GONE]])
async def test_a_recording_of_any_size(audio: bytes, failures: list[Failure]) -> None:
    with failing_server(*failures) as server:
        with Client(server.target, retry=AT_ONCE) as client:
            result = client.transcribe("m", audio)
        assert server.recording == audio
        assert (result.model, result.text, len(result.segments)) == ("m", TEXT, 2)
        assert server.num_calls == 1 + len(failures)
        async with AsyncClient(server.target) as aio:
            assert await aio.transcribe("m", audio) == result


async def test_segments_are_streamed() -> None:
    with failing_server(GONE) as server:
        with Client(server.target, retry=AT_ONCE) as client:
            *pieces, last = client.transcribe_stream("m", LARGE)
        assert [segment.text for piece in pieces for segment in piece.segments] == [
            " Good",
            " day <b> --> you.",
        ]
        assert [piece.finish for piece in pieces] == [None, None]
        assert last.finish is not None
        assert last.finish.language == "en"
        async with AsyncClient(server.target) as aio:
            assert [piece async for piece in aio.transcribe_stream("m", LARGE)] == [*pieces, last]


def test_an_unknown_option_is_an_error_before_the_call() -> None:
    with Client("127.0.0.1:1") as client:
        for audio in (SMALL, LARGE):
            with pytest.raises(TypeError, match="langauge"):
                client.transcribe("m", audio, langauge="pt")  # type: ignore[call-arg]


def test_a_failure_of_the_stream_is_typed() -> None:
    bad = Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad")
    with (
        failing_server(bad) as server,
        Client(server.target, retry=AT_ONCE) as client,
        pytest.raises(TriuneError, match="bad"),
    ):
        client.transcribe("m", LARGE)
    assert server.num_calls == 1


SRT = """1
00:00:00,500 --> 00:00:01,000
Good

2
01:00:00,000 --> 01:01:01,250
day <b> -> you.

"""
VTT = """WEBVTT

00:00:00.500 --> 00:00:01.000
Good

01:00:00.000 --> 01:01:01.250
day &lt;b&gt; -&gt; you.

"""


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ([], "Good\nday <b> --> you.\n"),
        (["--format", "srt"], SRT),
        (["--format", "vtt"], VTT),
    ],
)
def test_the_command_prints_segments(arguments: list[str], printed: str, tmp_path: Path) -> None:
    file = tmp_path / "recording.wav"
    file.write_bytes(LARGE)
    with failing_server() as server:
        ran = transcribe(server.target, str(file), *arguments)
        assert server.recording == LARGE
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, printed, "")


@pytest.mark.parametrize("arguments", [["--json"], ["--format", "json"]])
def test_the_json_of_a_recording(arguments: list[str]) -> None:
    with failing_server() as server:
        ran = transcribe(server.target, "-", *arguments, stdin=SMALL)
        assert server.recording == SMALL
    row = json.loads(ran.stdout)
    assert list(row) == ["model", "outputs", "usage", "timing"]
    assert row["model"] == "whisper"
    (output,) = row["outputs"]
    assert set(output) == {
        *("text", "segments", "language", "language_probability", "duration_seconds")
    }
    assert (output["text"], output["segments"][0]["end_seconds"]) == (TEXT, 1.0)


def test_a_missing_file_is_a_usage_error() -> None:
    assert transcribe("127.0.0.1:1", "no-such-file").returncode == 2


def transcribe(
    target: str, *arguments: str, stdin: bytes = b""
) -> "subprocess.CompletedProcess[str]":
    ran = subprocess.run(
        [sys.executable, "-m", "client", "--server", target, "transcribe", *arguments],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return subprocess.CompletedProcess(
        ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode()
    )


@pytest.mark.parametrize("arrow", ["-->", "--->", "---->"])
def test_a_cue_of_a_subrip_file_has_no_arrow_of_times(arrow: str) -> None:
    segment = Segment(
        text=f"a {arrow} b",
        start_seconds=0.0,
        end_seconds=1.0,
        token_ids=(),
        mean_logprob=0.0,
        compression_ratio=1.0,
        no_speech_probability=0.0,
        temperature=0.0,
    )
    (part,) = srt([segment])
    assert part == "1\n00:00:00,000 --> 00:00:01,000\na -> b\n\n"
