"""The command ``transcribe``."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from client import flags, render, subtitles, types
from client.option_flags import takes_options
from client.sync import Client

app = typer.Typer()


class TranscriptFormat(StrEnum):
    """Output formats of ``transcribe``. All but JSON are printed as segments arrive."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"
    JSON = "json"


_LINES: dict[TranscriptFormat, Callable[[Iterable[types.Segment]], Iterator[str]]] = {
    TranscriptFormat.TEXT: lambda segments: (f"{each.text.strip()}\n" for each in segments),
    TranscriptFormat.SRT: subtitles.srt,
    TranscriptFormat.VTT: subtitles.vtt,
}


@app.command()
@takes_options()
def transcribe(
    context: typer.Context,
    recording: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="FILE", help="A recording; '-' reads standard input."),
    ],
    model: Annotated[str, typer.Option()] = "whisper",
    format_: Annotated[
        TranscriptFormat, typer.Option("--format", help="What to print, a segment at a time.")
    ] = TranscriptFormat.TEXT,
    json: flags.Json = False,
    *,
    options: types.TranscriptionOptions,
) -> None:
    """Transcribe speech, or translate it to English."""
    audio = recording.read()
    client: Client
    with context.obj.connect() as client:
        if json or format_ is TranscriptFormat.JSON:
            _write_json(client.transcribe(model, audio, **options))
            return
        pieces = client.transcribe_stream(model, audio, **options)
        segments = (segment for piece in pieces for segment in piece.segments)
        for line in _LINES[format_](segments):
            sys.stdout.write(line)
            sys.stdout.flush()


def _write_json(result: types.TranscribeResult) -> None:
    output = asdict(result)
    for name in ("model", "usage", "timing"):
        del output[name]
    render.write_json(result.model, [output], result.usage, result.timing)
