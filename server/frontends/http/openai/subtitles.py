"""Formats the segments of a transcription as subtitles: SubRip (SRT) and WebVTT."""

import re
from collections.abc import Iterable

from server.service.transcription_request import Segment


def srt(segments: Iterable[Segment]) -> str:
    """The text of a SubRip file."""
    return "".join(
        f"{number}\n{_times(segment, ',')}\n{_cue(segment.text)}\n\n"
        for number, segment in enumerate(segments, start=1)
    )


def vtt(segments: Iterable[Segment]) -> str:
    """The text of a WebVTT file. Source: https://www.w3.org/TR/webvtt1/#file-structure."""
    return "WEBVTT\n\n" + "".join(
        f"{_times(segment, '.')}\n{_escaped(_cue(segment.text))}\n\n" for segment in segments
    )


def _times(segment: Segment, point: str) -> str:
    return f"{_time(segment.start_seconds, point)} --> {_time(segment.end_seconds, point)}"


def _time(seconds: float, point: str) -> str:
    """Formats a time as hours, minutes, seconds and milliseconds."""
    minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{whole:02}{point}{milliseconds:03}"


def _cue(text: str) -> str:
    """The text on one line, without "-->", which separates the times of a cue."""
    return re.sub("-{2,}>", "->", " ".join(text.split()))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
