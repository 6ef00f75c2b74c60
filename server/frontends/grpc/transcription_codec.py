"""Encodes results of Transcribe and TranscribeStream."""

from collections.abc import Iterable
from typing import Any

from protos.triune.v1 import transcription_pb2 as pb
from server.frontends.grpc.common_codec import timing, usage
from server.service.transcription_request import (
    Segment,
    TranscribeResult,
    TranscriptionChunk,
    TranscriptionFinish,
)


def transcribe_response(result: TranscribeResult) -> pb.TranscribeResponse:
    """The response to Transcribe."""
    finish = result.finish
    response = pb.TranscribeResponse(
        model=result.model,
        text=result.text,
        language=finish.language,
        language_probability=finish.language_probability,
        duration_seconds=finish.duration_seconds,
        usage=usage(finish.usage),
        timing=timing(finish.timing),
    )
    _add_segments(response.segments, result.segments)
    return response


def chunk_response(chunk: TranscriptionChunk) -> pb.TranscribeStreamResponse:
    """One message of TranscribeStream."""
    response = pb.TranscribeStreamResponse(model=chunk.model)
    _add_segments(response.segments, chunk.segments)
    if chunk.finish is not None:
        response.finish.CopyFrom(_finish(chunk.finish))
    return response


def _finish(finish: TranscriptionFinish) -> pb.TranscriptionFinish:
    return pb.TranscriptionFinish(
        language=finish.language,
        language_probability=finish.language_probability,
        duration_seconds=finish.duration_seconds,
        usage=usage(finish.usage),
        timing=timing(finish.timing),
    )


def _add_segments(messages: Any, segments: Iterable[Segment]) -> None:
    for segment in segments:
        message = messages.add(
            text=segment.text,
            start_seconds=segment.start_seconds,
            end_seconds=segment.end_seconds,
            token_ids=segment.token_ids,
            mean_logprob=segment.mean_logprob,
            compression_ratio=segment.compression_ratio,
            no_speech_probability=segment.no_speech_probability,
            temperature=segment.temperature,
        )
        for word in segment.words:
            message.words.add(
                text=word.text,
                start_seconds=word.start_seconds,
                end_seconds=word.end_seconds,
                probability=word.probability,
            )
