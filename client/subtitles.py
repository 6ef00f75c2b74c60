"""Formats the segments of a transcription as subtitles: SubRip (SRT) and WebVTT."""

import re
from collections.abc import Iterable, Iterator

from client.transcription import Segment


def srt(segments: Iterable[Segment]) -> Iterator[str]:
    """The parts of a SubRip file, one for each segment."""
    for number, segment in enumerate(segments, start=1):
        start, end = _time(segment.start_seconds, ","), _time(segment.end_seconds, ",")
        yield f"{number}\n{start} --> {end}\n{_cue(segment.text)}\n\n"


def vtt(segments: Iterable[Segment]) -> Iterator[str]:
    """The parts of a WebVTT file: its header, then one for each segment.

    Source: https://www.w3.org/TR/webvtt1/#file-structure
    """
    yield "WEBVTT\n\n"
    for segment in segments:
        start, end = _time(segment.start_seconds, "."), _time(segment.end_seconds, ".")
        text = _cue(segment.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        yield f"{start} --> {end}\n{text}\n\n"


def _time(seconds: float, point: str) -> str:
    """Formats a time as hours, minutes, seconds and milliseconds."""
    milliseconds = round(1000 * seconds)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds_, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{seconds_:02}{point}{milliseconds:03}"


def _cue(text: str) -> str:
    """The text on one line, without "-->", which separates the times of a cue."""
    return re.sub("-{2,}>", "->", " ".join(text.split()))
