"""Formats of transcriptions: subtitles by their specifications, words, and names of languages."""

import json
from typing import Any

import pytest
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from server.frontends.http.openai.audio import TranscriptionBody, encoded
from server.service.transcription_request import (
    Segment,
    TranscribeResult,
    TranscriptionFinish,
    Word,
)
from server.service.usage import Timing, Usage


def segment(text: str, start: float, end: float, *words: Word) -> Segment:
    return Segment(text, start, end, (1, 2), -0.5, 1.5, 0.25, 0.0, words)


SEGMENTS = (
    segment(" Good <b>day</b> & ---> all.", 0.0, 1.9996, Word(" Good", 0.0, 0.5, 0.9)),
    segment("\n Two\n\nlines. ", 3599.9999, 3661.042, Word(" Two,", 3600.0, 3600.5, 0.8)),
    segment("", 360_000.0, 360_000.5),
)
FINISH = TranscriptionFinish("de", 0.9, 7200.12345, Usage(), Timing())


def content(response_format: str, *granularities: str) -> str:
    body = TranscriptionBody(
        file=b"",
        model="m",
        response_format=response_format,
        timestamp_granularities=list(granularities),
    )
    text = "".join(each.text for each in SEGMENTS).strip()
    result = TranscribeResult("m", text, SEGMENTS, FINISH)
    return bytes(encoded(result, body, translate=False).body).decode()


def test_subrip() -> None:
    assert content("srt") == (
        "1\n00:00:00,000 --> 00:00:02,000\nGood <b>day</b> & -> all.\n\n"
        "2\n01:00:00,000 --> 01:01:01,042\nTwo lines.\n\n"
        "3\n100:00:00,000 --> 100:00:00,500\n\n\n"
    )


def test_webvtt_escapes_markup() -> None:
    assert content("vtt") == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:02.000\nGood &lt;b&gt;day&lt;/b&gt; &amp; -&gt; all.\n\n"
        "01:00:00.000 --> 01:01:01.042\nTwo lines.\n\n"
        "100:00:00.000 --> 100:00:00.500\n\n\n"
    )


@pytest.mark.parametrize(
    ("granularities", "fields"),
    [
        ((), {"segments"}),
        (("segment",), {"segments"}),
        (("word",), {"words"}),
        (("word", "segment"), {"words", "segments"}),
    ],
)
def test_granularities(granularities: tuple[str, ...], fields: set[str]) -> None:
    verbose: Any = json.loads(content("verbose_json", *granularities))
    assert set(verbose) == {"task", "language", "duration", "text", "usage", *fields}
    assert (verbose["language"], verbose["duration"]) == ("german", 7200.123)
    if "words" in fields:
        assert verbose["words"] == [
            {"word": "Good", "start": 0.0, "end": 0.5},
            {"word": "Two,", "start": 3600.0, "end": 3600.5},
        ]
    if "segments" in fields:
        assert [each["id"] for each in verbose["segments"]] == [0, 1, 2]
        assert verbose["segments"][0] == {
            **{"id": 0, "seek": 0, "start": 0.0, "end": 2.0, "text": SEGMENTS[0].text},
            **{"tokens": [1, 2], "temperature": 0.0, "avg_logprob": -0.5},
            **{"compression_ratio": 1.5, "no_speech_prob": 0.25},
        }


def test_names_of_languages_are_those_of_whisper() -> None:
    for code, name in LANGUAGES.items():
        finish = TranscriptionFinish(code, 1.0, 1.0, Usage(), Timing())
        assert finish.language_name == name
