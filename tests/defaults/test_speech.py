"""The served default model of speech, on real recordings."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.sync import Client
from export.speech import FOLDER, SENTENCES
from tests.serving import server_process


@pytest.fixture(scope="module")
def client(int8_bundles: Path) -> Iterator[Client]:
    with server_process(int8_bundles) as running, Client(running.target) as connected:
        yield connected


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_are_transcribed(client: Client, name: str) -> None:
    """At most one word differs: int8 rounding depends on the processor."""
    result = client.transcribe("whisper", (FOLDER / f"{name}.opus").read_bytes())
    spoken, heard = words(SENTENCES[name]), words(result.text)
    assert result.language == "en"
    assert result.language_probability > 0.5
    assert len(heard) == len(spoken)
    assert sum(a != b for a, b in zip(heard, spoken, strict=True)) <= 1


def test_segments_have_times(client: Client) -> None:
    recording = (FOLDER / "austen-1.opus").read_bytes()
    result = client.transcribe("whisper", recording, language="en")
    assert result.duration_seconds == pytest.approx(7.1, abs=0.1)
    assert "".join(segment.text for segment in result.segments).strip() == result.text.strip()
    times = [t for part in result.segments for t in (part.start_seconds, part.end_seconds)]
    assert times == sorted(times)
    assert 5 < times[-1] <= result.duration_seconds + 0.5
    assert all(segment.no_speech_probability < 0.5 for segment in result.segments)
