"""Encoding transcriptions as protobuf: every field, and only what a chunk has."""

import pytest

from client import transcription_messages
from protos.triune.v1 import common_pb2, inference_pb2
from protos.triune.v1 import transcription_pb2 as pb
from server.frontends.grpc.codec import decode
from server.frontends.grpc.transcription_codec import chunk_response, transcribe_response
from server.service.transcription_request import (
    Segment,
    TranscribeRequest,
    TranscribeResult,
    TranscriptionChunk,
    TranscriptionFinish,
    TranscriptionOptions,
    Word,
)
from server.service.usage import Timing, Usage

SEGMENTS = (
    Segment(" Good", 0.5, 1.0, (7, 8), -0.25, 0.75, 0.125, 0.25, (Word(" Good", 0.5, 1.0, 0.5),)),
    Segment(" day.", 1.0, 2.5, (9,), -0.5, 1.25, 0.0625, 0.0),
)
FINISH = TranscriptionFinish("en", 0.75, 30.5, Usage(1500, 12, 3), Timing(1.0, 2.0, 3.0, 4.0, 5.0))
USAGE = common_pb2.Usage(input_tokens=1500, output_tokens=12, reused_tokens=3)
TIMING = common_pb2.Timing(
    queue_seconds=1.0,
    tokenize_seconds=2.0,
    prefill_seconds=3.0,
    decode_seconds=4.0,
    total_seconds=5.0,
)
GOOD = pb.Segment(
    text=" Good",
    start_seconds=0.5,
    end_seconds=1.0,
    token_ids=[7, 8],
    mean_logprob=-0.25,
    compression_ratio=0.75,
    no_speech_probability=0.125,
    temperature=0.25,
    words=[pb.Word(text=" Good", start_seconds=0.5, end_seconds=1.0, probability=0.5)],
)
DAY = pb.Segment(
    text=" day.",
    start_seconds=1.0,
    end_seconds=2.5,
    token_ids=[9],
    mean_logprob=-0.5,
    compression_ratio=1.25,
    no_speech_probability=0.0625,
)


@pytest.mark.parametrize("kind", [pb.TranscribeRequest, pb.TranscribeStreamRequest])
def test_requests_decode_every_field(
    kind: type[pb.TranscribeRequest] | type[pb.TranscribeStreamRequest],
) -> None:
    options = pb.TranscriptionOptions(
        language="pt",
        translate=True,
        prompt="Names",
        temperature=0.0,
        beam_size=5,
        word_timestamps=True,
    )
    message = kind(model="m", version="2", audio=b"RIFF", options=options, priority=-3)
    assert {field.name for field, _ in message.ListFields()} == {*kind.DESCRIPTOR.fields_by_name}
    assert len(options.ListFields()) == len(options.DESCRIPTOR.fields)
    assert decode(message, TranscribeRequest) == TranscribeRequest(
        model="m",
        version="2",
        audio=b"RIFF",
        options=TranscriptionOptions(
            language="pt",
            translate=True,
            prompt="Names",
            temperature=0.0,
            beam_size=5,
            word_timestamps=True,
        ),
        priority=-3,
    )
    assert decode(kind(), TranscribeRequest) == TranscribeRequest(model="")


def test_a_response_has_every_field() -> None:
    result = TranscribeResult("m", "Good day.", SEGMENTS, FINISH)
    response = transcribe_response(result)
    assert response == inference_pb2.TranscribeResponse(
        model="m",
        text="Good day.",
        segments=[GOOD, DAY],
        language="en",
        language_probability=0.75,
        duration_seconds=30.5,
        usage=USAGE,
        timing=TIMING,
    )
    assert len(response.ListFields()) == len(response.DESCRIPTOR.fields)
    assert result.num_values == 6


def test_only_the_last_chunk_has_a_finish() -> None:
    first = chunk_response(TranscriptionChunk("m", SEGMENTS[:1]))
    assert first == pb.TranscribeStreamResponse(model="m", segments=[GOOD])
    last = chunk_response(TranscriptionChunk("m", SEGMENTS[1:], FINISH))
    assert last.segments == [DAY]
    assert last.finish == pb.TranscriptionFinish(
        language="en", language_probability=0.75, duration_seconds=30.5, usage=USAGE, timing=TIMING
    )


def test_the_client_joins_chunks_to_the_result() -> None:
    chunks = (
        TranscriptionChunk("m", SEGMENTS[:1]),
        TranscriptionChunk("m"),
        TranscriptionChunk("m", SEGMENTS[1:], FINISH),
    )
    pieces = [transcription_messages.piece(chunk_response(chunk)) for chunk in chunks]
    whole = transcribe_response(TranscribeResult("m", "Good day.", SEGMENTS, FINISH))
    assert transcription_messages.joined(pieces) == transcription_messages.result(whole)
