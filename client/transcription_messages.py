"""Builds the requests of ``transcribe`` and converts its responses to results."""

from collections.abc import Callable, Iterable, Iterator

from client import types
from client.messages import build, read_fields
from client.responses import timing, usage
from protos.triune.v1 import transcription_pb2 as wire

MAX_UNARY_BYTES = (4 << 20) - (64 << 10)
"""Most audio bytes in one message: gRPC's limit of 4 MiB, less 64 KiB for the options."""
_PART_BYTES = 128 << 10


def request(
    model: str, audio: bytes, options: types.TranscriptionOptions
) -> wire.TranscribeRequest:
    """The request of ``Transcribe``."""
    return build(
        wire.TranscribeRequest, types.TranscriptionOptions, options, model=model, audio=audio
    )


def parts(
    model: str, audio: bytes, options: types.TranscriptionOptions
) -> Callable[[], Iterator[wire.TranscribeStreamRequest]]:
    """Returns a function that makes the requests of one ``TranscribeStream`` attempt.

    Only the first request has the model and the options.
    """
    first = build(
        wire.TranscribeStreamRequest,
        types.TranscriptionOptions,
        options,
        model=model,
        audio=audio[:_PART_BYTES],
    )

    def make() -> Iterator[wire.TranscribeStreamRequest]:
        yield first
        for start in range(_PART_BYTES, len(audio), _PART_BYTES):
            yield wire.TranscribeStreamRequest(audio=audio[start : start + _PART_BYTES])

    return make


def result(message: wire.TranscribeResponse) -> types.TranscribeResult:
    """The response of ``Transcribe``."""
    return types.TranscribeResult(
        model=message.model,
        text=message.text,
        segments=_segments(message.segments),
        language=message.language,
        language_probability=message.language_probability,
        duration_seconds=message.duration_seconds,
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def piece(message: wire.TranscribeStreamResponse) -> types.TranscriptionPiece:
    """One response of ``TranscribeStream``."""
    finish = None
    if message.HasField("finish"):
        end = message.finish
        finish = read_fields(
            types.TranscriptionFinish, end, usage=usage(end.usage), timing=timing(end.timing)
        )
    return types.TranscriptionPiece(
        model=message.model, segments=_segments(message.segments), finish=finish
    )


def joined(pieces: Iterable[types.TranscriptionPiece]) -> types.TranscribeResult:
    """Joins all pieces of a stream into one result."""
    segments: list[types.Segment] = []
    for each in pieces:
        segments += each.segments
        if each.finish is not None:
            end = each.finish
            return types.TranscribeResult(
                model=each.model,
                text="".join(segment.text for segment in segments).strip(),
                segments=tuple(segments),
                language=end.language,
                language_probability=end.language_probability,
                duration_seconds=end.duration_seconds,
                usage=end.usage,
                timing=end.timing,
            )
    raise ValueError("the stream has no end")


def _segments(messages: Iterable[wire.Segment]) -> tuple[types.Segment, ...]:
    return tuple(
        read_fields(
            types.Segment,
            message,
            token_ids=tuple(message.token_ids),
            words=tuple(read_fields(types.Word, word) for word in message.words),
        )
        for message in messages
    )
