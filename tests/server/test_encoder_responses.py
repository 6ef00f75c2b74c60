"""Encoding encoder results as protobuf, and decoding EmbedStream messages."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
import pytest

from protos.triune.v1 import encoding_pb2 as pb
from server.errors import InvalidArgumentError
from server.frontends.grpc.codec import wire_path
from server.frontends.grpc.embed_codec import (
    EmbedStreamCodec,
    EncodingFormat,
    decode_encoding,
    embed_response,
)
from server.frontends.grpc.encoder_codec import (
    answer_response,
    classify_response,
    fill_mask_response,
    rerank_response,
    tag_response,
)
from server.service.answer import AnswerResult, Answers, AnswerSpan
from server.service.classify import Classification, ClassifyResult, LabelScore
from server.service.embed_stream import BulkItem
from server.service.embedding import (
    Embedding,
    EmbedRequest,
    EmbedResult,
    SparseVector,
    TokenEmbeddings,
)
from server.service.encoder_options import LengthOptions
from server.service.fill_mask import FilledMask, FillMaskResult, MaskCandidate, MaskFilling
from server.service.rerank import RankedDocument, RerankResult
from server.service.tag import Tagging, TagResult, TextEntity
from server.service.truncation import Truncation
from server.service.usage import Timing, Usage

UNKNOWN: Any = 9  # a number that no enum has
USAGE = Usage(input_tokens=3, output_tokens=2, reused_tokens=1, reasoning_tokens=7)
TIMING = Timing(0.5, 0.25, 0.125, 0.0625, 1.0)
TRUNCATION = Truncation(truncated_tokens=5, windows=2)
VECTOR = np.array([0.1, -2.5, 3.0], np.float32)
TOKENS = TokenEmbeddings(("[CLS]", "a"), ((0, 0), (4, 5)), np.full((2, 3), 1 / 3, np.float32))


def embed_result(*, tokens: TokenEmbeddings | None = None) -> EmbedResult:
    return EmbedResult("m", (Embedding(VECTOR, USAGE, TRUNCATION, tokens),), USAGE, TIMING)


def assert_shared_fields(response: Any, outputs: Iterable[Any]) -> None:
    """Checks model, usage, timing and truncation against the constants above."""
    assert response.model == "m"
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 2)
    assert (response.usage.reused_tokens, response.usage.reasoning_tokens) == (1, 7)
    timing = response.timing
    assert (timing.queue_seconds, timing.tokenize_seconds) == (0.5, 0.25)
    assert (timing.prefill_seconds, timing.decode_seconds) == (0.125, 0.0625)
    assert timing.total_seconds == 1.0
    for output in outputs:
        assert (output.reading.truncated_tokens, output.reading.windows) == (5, 2)
        if hasattr(output, "usage"):
            assert output.usage == response.usage


def test_encodes_vectors_as_floats_or_bytes() -> None:
    response = embed_response(embed_result(), EncodingFormat.FLOAT)
    (output,) = response.outputs
    assert_shared_fields(response, response.outputs)
    assert list(output.values) == VECTOR.tolist()
    assert (output.packed, output.encoding_format) == (b"", pb.ENCODING_FORMAT_UNSPECIFIED)
    assert not output.HasField("tokens")
    for encoding, dtype in (
        (EncodingFormat.FLOAT32_BYTES, "<f4"),
        (EncodingFormat.FLOAT16_BYTES, "<f2"),
    ):
        (output,) = embed_response(embed_result(), encoding).outputs
        assert (list(output.values), output.packed) == ([], VECTOR.astype(dtype).tobytes())
        assert output.encoding_format == encoding.value


@pytest.mark.parametrize("encoding", EncodingFormat)
def test_packs_token_vectors_in_every_encoding(encoding: EncodingFormat) -> None:
    (output,) = embed_response(embed_result(tokens=TOKENS), encoding).outputs
    tokens = output.tokens
    assert (list(tokens.tokens), tokens.size) == (["[CLS]", "a"], 3)
    assert (list(tokens.starts), list(tokens.ends)) == ([0, 4], [0, 5])
    dtype = "<f2" if encoding == EncodingFormat.FLOAT16_BYTES else "<f4"
    assert tokens.packed == TOKENS.vectors.astype(dtype).tobytes()


@pytest.mark.parametrize("encoding", EncodingFormat)
def test_encodes_what_has_no_single_vector(encoding: EncodingFormat) -> None:
    sparse = SparseVector(
        np.array([3, 70_000], np.int32), np.array([0.5, 2.0], np.float32), ("a", "b")
    )
    outputs = (
        Embedding(None, USAGE, TRUNCATION, sparse=sparse),
        Embedding(None, USAGE, TRUNCATION, TOKENS),
    )
    response = embed_response(EmbedResult("m", outputs, USAGE, TIMING), encoding)
    assert_shared_fields(response, response.outputs)
    weights, tokens = response.outputs
    assert weights.sparse == pb.SparseVector(
        indices=[3, 70_000], values=[0.5, 2.0], tokens=["a", "b"]
    )
    assert weights.encoding_format == pb.ENCODING_FORMAT_UNSPECIFIED
    for output in response.outputs:
        assert (list(output.values), output.packed) == ([], b"")
    is_packed = encoding is not EncodingFormat.FLOAT
    assert (tokens.encoding_format == encoding.value) == is_packed
    assert tokens.tokens.packed == TOKENS.vectors.astype(encoding.dtype).tobytes()
    assert (weights.HasField("tokens"), tokens.HasField("sparse")) == (False, False)


def test_rejects_unknown_encodings() -> None:
    assert decode_encoding(pb.EmbedRequest()) == EncodingFormat.FLOAT
    for value in EncodingFormat:
        options = pb.EmbedOptions(encoding_format=value.value)
        assert decode_encoding(pb.EmbedRequest(options=options)) == value
    message = pb.EmbedRequest(options=pb.EmbedOptions(encoding_format=UNKNOWN))
    with pytest.raises(InvalidArgumentError) as caught:
        decode_encoding(message)
    assert wire_path(message, caught.value.field) == "options.encoding_format"


def test_encodes_classify_and_tag_results() -> None:
    classification = Classification(
        (LabelScore("x", 0.75), LabelScore("y", 0.25)), USAGE, TRUNCATION
    )
    classified = classify_response(ClassifyResult("m", (classification,), USAGE, TIMING))
    assert_shared_fields(classified, classified.outputs)
    labels = classified.outputs[0].labels
    assert [(label.label, label.score) for label in labels] == [("x", 0.75), ("y", 0.25)]
    tagging = Tagging((TextEntity("PER", 0.5, 2, 4, "ab"),), USAGE, TRUNCATION)
    tagged = tag_response(TagResult("m", (tagging,), USAGE, TIMING))
    assert_shared_fields(tagged, tagged.outputs)
    expected = pb.Entity(label="PER", score=0.5, start=2, end=4, text="ab")
    assert list(tagged.outputs[0].entities) == [expected]


def test_encodes_fill_mask_and_answer_results() -> None:
    mask = FilledMask(2, 8, (MaskCandidate("word", 7, 0.5),))
    filling = MaskFilling((mask,), USAGE, TRUNCATION)
    filled = fill_mask_response(FillMaskResult("m", (filling,), USAGE, TIMING))
    assert_shared_fields(filled, filled.outputs)
    candidate = pb.MaskCandidate(text="word", token_id=7, score=0.5)
    expected = pb.FilledMask(start=2, end=8, candidates=[candidate])
    assert list(filled.outputs[0].masks) == [expected]
    answers = Answers((AnswerSpan("ab", 0.5, 2, 4),), USAGE, TRUNCATION)
    answered = answer_response(AnswerResult("m", (answers,), USAGE, TIMING))
    assert_shared_fields(answered, answered.outputs)
    span = pb.AnswerSpan(text="ab", score=0.5, start=2, end=4)
    assert list(answered.outputs[0].spans) == [span]


def test_encodes_rerank_results() -> None:
    document = RankedDocument(4, -0.5, "text", TRUNCATION)
    ranked = rerank_response(RerankResult("m", (document,), USAGE, TIMING))
    assert_shared_fields(ranked, ranked.outputs)
    (output,) = ranked.outputs
    assert (output.index, output.score, output.document) == (4, -0.5, "text")


def decode(*messages: pb.EmbedStreamRequest) -> tuple[EmbedStreamCodec, list[BulkItem]]:
    async def rest() -> AsyncIterator[pb.EmbedStreamRequest]:
        for message in messages[1:]:
            yield message

    async def items(codec: EmbedStreamCodec) -> list[BulkItem]:
        return [item async for item in codec]

    codec = EmbedStreamCodec(messages[0], rest())
    return codec, asyncio.run(items(codec))


def test_stream_messages_inherit_earlier_fields() -> None:
    packed = pb.EmbedOptions(dimensions=8, encoding_format=pb.ENCODING_FORMAT_FLOAT16_BYTES)
    length = pb.LengthOptions(max_tokens=9)
    codec, items = decode(
        pb.EmbedStreamRequest(id=5, model="m", version="2", inputs=["a"], options=packed),
        pb.EmbedStreamRequest(id=5, inputs=["b", "c"], length=length),
        pb.EmbedStreamRequest(id=6, model="n", options=pb.EmbedOptions(normalize=True)),
    )
    length_options = LengthOptions(max_tokens=9)
    assert items == [
        BulkItem(5, EmbedRequest(model="m", version="2", inputs=("a",), dimensions=8)),
        BulkItem(
            5,
            EmbedRequest(
                model="m", version="2", inputs=("b", "c"), dimensions=8, length=length_options
            ),
        ),
        BulkItem(6, EmbedRequest(model="n", normalize=True, length=length_options)),
    ]
    responses = [codec.response(item.id)(embed_result()) for item in items]
    assert [response.id for response in responses] == [5, 5, 6]
    sizes = [(len(x.outputs[0].values), len(x.outputs[0].packed)) for x in responses]
    assert sizes == [(0, 6), (0, 6), (3, 0)]
    for response in responses:
        assert_shared_fields(response, response.outputs)


@pytest.mark.parametrize(
    ("bad_field", "path"),
    [
        ({"options": pb.EmbedOptions(encoding_format=UNKNOWN)}, "options.encoding_format"),
        ({"length": pb.LengthOptions(long_input=UNKNOWN)}, "length.long_input"),
    ],
)
def test_invalid_stream_message_becomes_an_error_item(bad_field: dict[str, Any], path: str) -> None:
    bad = pb.EmbedStreamRequest(id=2, **bad_field)
    _, items = decode(pb.EmbedStreamRequest(id=1, model="m", inputs=["a"]), bad)
    assert items[0] == BulkItem(1, EmbedRequest(model="m", inputs=("a",)))
    assert items[1].id == 2
    assert isinstance(items[1].request, InvalidArgumentError)
    assert wire_path(bad, items[1].request.field) == path
