"""The gRPC codec of the calls to encoders: requests field by field, and responses."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from model.bundle import ScoreFunction
from protos.triune.v1 import encoding_pb2 as pb
from server.errors import InvalidArgumentError, ServeError
from server.frontends.grpc.codec import read, wire_path
from server.frontends.grpc.embed_codec import (
    EmbedStreamCodec,
    EncodingFormat,
    embed_response,
    read_encoding,
)
from server.frontends.grpc.encoder_codec import (
    answer_response,
    classify_response,
    fill_mask_response,
    rerank_response,
    tag_response,
)
from server.service.answer import AnswerRequest, AnswerResult, Answers, AnswerSpan, Question
from server.service.classify import (
    Classification,
    ClassifyRequest,
    ClassifyResult,
    LabelScore,
    TextPair,
)
from server.service.embed import Embedding, EmbedRequest, EmbedResult, TokenEmbeddings
from server.service.embed_stream import BulkItem
from server.service.encoder_call import Truncation
from server.service.encoder_options import LengthOptions
from server.service.fill_mask import (
    FilledMask,
    FillMaskRequest,
    FillMaskResult,
    MaskCandidate,
    MaskFilling,
)
from server.service.rerank import RankedDocument, RerankRequest, RerankResult
from server.service.tag import Tagging, TagRequest, TagResult, TextEntity
from server.service.usage import Timing, Usage
from server.text.entities import Aggregation
from server.text.windows import LongInput

REQUESTS: tuple[tuple[type[Message], Any], ...] = (
    (
        pb.EmbedRequest,
        EmbedRequest(
            model="m",
            version="2",
            inputs=("a", "b"),
            dimensions=8,
            normalize=False,
            prompt_name="query",
            prompt="q: ",
            token_embeddings=True,
            length=LengthOptions(long_input=LongInput.TRUNCATE_RIGHT, max_tokens=9, stride=3),
        ),
    ),
    (
        pb.ClassifyRequest,
        ClassifyRequest(
            model="m",
            version="2",
            inputs=("a",),
            pairs=(TextPair("b", "c"), TextPair("d", "e")),
            top_k=3,
            score_function=ScoreFunction.SIGMOID,
            length=LengthOptions(long_input=LongInput.TRUNCATE_LEFT, max_tokens=9, stride=0),
        ),
    ),
    (
        pb.TagRequest,
        TagRequest(
            model="m",
            version="2",
            inputs=("a",),
            aggregation=Aggregation.FIRST,
            ignored_labels=("O", "X"),
            min_score=0.25,
            length=LengthOptions(long_input=LongInput.WINDOWS, max_tokens=9, stride=3),
        ),
    ),
    (
        pb.FillMaskRequest,
        FillMaskRequest(
            model="m",
            version="2",
            inputs=("a",),
            top_k=3,
            targets=("x", "y"),
            length=LengthOptions(long_input=LongInput.ERROR, max_tokens=9, stride=3),
        ),
    ),
    (
        pb.AnswerRequest,
        AnswerRequest(
            model="m",
            version="2",
            questions=(Question("q", "c"), Question("r", "d")),
            top_k=3,
            max_answer_tokens=4,
            allow_no_answer=True,
            length=LengthOptions(long_input=LongInput.WINDOWS, max_tokens=9, stride=3),
        ),
    ),
    (
        pb.RerankRequest,
        RerankRequest(
            model="m",
            version="2",
            query="q",
            documents=("a", "b"),
            top_n=1,
            return_documents=True,
            score_function=ScoreFunction.IDENTITY,
            query_prompt_name="query",
            document_prompt_name="",
            length=LengthOptions(long_input=LongInput.WINDOWS, max_tokens=9, stride=3),
        ),
    ),
)
NAMES = [message.DESCRIPTOR.name for message, _ in REQUESTS]
# Read by the codec for itself: how a response is encoded is no part of the service's request.
CODEC_FIELDS = {"encoding_format"}


def leaves(request: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a request's fields, with those of its groups."""
    for field in fields(request):
        value = getattr(request, field.name)
        if is_dataclass(value):
            yield from leaves(value)
        else:
            yield field.name, value


def is_group(field: FieldDescriptor) -> bool:
    return field.message_type is not None and not field.is_repeated


def wire_names(descriptor: Descriptor) -> set[str]:
    """Names of a message's fields, with those of its groups instead of the groups."""
    names = set()
    for field in descriptor.fields:
        if is_group(field):
            names |= {inner.name for inner in field.message_type.fields}
        else:
            names.add(field.name)
    return names


def holder_of(message: Message, name: str) -> Message:
    """The message, or the group in it, that has the field."""
    if name in message.DESCRIPTOR.fields_by_name:
        return message
    (group,) = [
        field.name
        for field in message.DESCRIPTOR.fields
        if is_group(field) and name in field.message_type.fields_by_name
    ]
    holder: Message = getattr(message, group)
    return holder


def wire_value(holder: Message, name: str, value: Any) -> Any:
    """``value`` as the protobuf field takes it."""
    field = holder.DESCRIPTOR.fields_by_name[name]
    if isinstance(value, Enum) and field.enum_type is not None:
        (number,) = [x.number for x in field.enum_type.values if x.name.endswith(f"_{value.name}")]
        return number
    return value


def to_wire(kind: type[Message], request: Any) -> Message:
    """``request`` as a message, by walking the descriptors: the codec's inverse."""
    message = kind()
    for name, value in leaves(request):
        holder = holder_of(message, name)
        if not isinstance(value, tuple):
            setattr(holder, name, wire_value(holder, name, value))
            continue
        for item in value:
            if is_dataclass(item):
                getattr(holder, name).add(**dict(leaves(item)))
            else:
                getattr(holder, name).append(item)
    return message


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=NAMES)
def test_every_field_of_a_request_arrives(kind: type[Message], request_: Any) -> None:
    assert read(to_wire(kind, request_), type(request_)) == request_
    defaults = dict(leaves(type(request_)(model="")))
    unchanged = {name for name, value in leaves(request_) if value == defaults[name]}
    assert not unchanged, "each field of the example differs from its default"


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=NAMES)
def test_requests_have_the_fields_of_the_wire(kind: type[Message], request_: Any) -> None:
    names = wire_names(kind.DESCRIPTOR)
    assert {name for name, _ in leaves(request_)} == names - CODEC_FIELDS


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=NAMES)
def test_an_empty_message_is_a_request_of_defaults(kind: type[Message], request_: Any) -> None:
    assert read(kind(), type(request_)) == type(request_)(model="")


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=NAMES)
def test_errors_name_the_field_on_the_wire(kind: type[Message], request_: Any) -> None:
    message = kind()
    for name, _ in leaves(request_):
        holder = holder_of(message, name)
        group = next(
            (x.name for x in kind.DESCRIPTOR.fields if x.message_type is holder.DESCRIPTOR), None
        )
        expected = name if holder is message else f"{group}.{name}"
        assert wire_path(message, f"{name}[1]") == f"{expected}[1]"


def enum_fields() -> Iterator[tuple[type[Message], Any, str]]:
    for kind, request in REQUESTS:
        for name, value in leaves(request):
            if isinstance(value, Enum):
                yield kind, type(request), name


@pytest.mark.parametrize(
    ("kind", "request_kind", "name"),
    enum_fields(),
    ids=[f"{kind.DESCRIPTOR.name}.{name}" for kind, _, name in enum_fields()],
)
def test_every_value_of_an_enumeration_is_known(
    kind: type[Message], request_kind: Any, name: str
) -> None:
    message = kind()
    holder = holder_of(message, name)
    seen = set()
    for value in holder.DESCRIPTOR.fields_by_name[name].enum_type.values:
        setattr(holder, name, value.number)
        seen.add(dict(leaves(read(message, request_kind)))[name])
        if value.number:
            assert value.name.endswith(f"_{dict(leaves(read(message, request_kind)))[name].name}")
    assert len(seen - {None}) == len(holder.DESCRIPTOR.fields_by_name[name].enum_type.values) - 1
    setattr(holder, name, 99)
    with pytest.raises(InvalidArgumentError) as caught:
        read(message, request_kind)
    assert (caught.value.field, caught.value.description) == (name, "99 is not one of its values")


USAGE = Usage(input_tokens=3, output_tokens=2, reused_tokens=1)
TIMING = Timing(0.5, 0.25, 0.125, 0.0625, 1.0)
TRUNCATION = Truncation(truncated_tokens=5, windows=2)
VECTOR = np.array([0.1, -2.5, 3.0], np.float32)
TOKENS = TokenEmbeddings(("[CLS]", "a"), ((0, 0), (4, 5)), np.ones((2, 3), np.float32) / 3)


def embed_result(*, tokens: TokenEmbeddings | None = None) -> EmbedResult:
    return EmbedResult("m", (Embedding(VECTOR, USAGE, TRUNCATION, tokens),), USAGE, TIMING)


def assert_shared_fields(response: Any, outputs: Iterable[Any]) -> None:
    """Model, usage, timing and truncation are as in the constants above."""
    assert response.model == "m"
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 2)
    assert response.usage.reused_tokens == 1
    timing = response.timing
    assert (timing.queue_seconds, timing.tokenize_seconds) == (0.5, 0.25)
    assert (timing.prefill_seconds, timing.decode_seconds) == (0.125, 0.0625)
    assert timing.total_seconds == 1.0
    for output in outputs:
        assert (output.reading.truncated_tokens, output.reading.windows) == (5, 2)
        if hasattr(output, "usage"):
            assert output.usage == response.usage


def test_vectors_are_floats_or_bytes() -> None:
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
def test_vectors_of_tokens_are_packed_in_every_format(encoding: EncodingFormat) -> None:
    (output,) = embed_response(embed_result(tokens=TOKENS), encoding).outputs
    tokens = output.tokens
    assert (list(tokens.tokens), tokens.size) == (["[CLS]", "a"], 3)
    assert (list(tokens.starts), list(tokens.ends)) == ([0, 4], [0, 5])
    dtype = "<f2" if encoding == EncodingFormat.FLOAT16_BYTES else "<f4"
    assert tokens.packed == TOKENS.vectors.astype(dtype).tobytes()


def test_an_unknown_encoding_is_refused() -> None:
    assert read_encoding(pb.EmbedRequest()) == EncodingFormat.FLOAT
    for value in EncodingFormat:
        options = pb.EmbedOptions(encoding_format=value.value)
        assert read_encoding(pb.EmbedRequest(options=options)) == value
    message = pb.EmbedRequest(options=pb.EmbedOptions(encoding_format=9))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError) as caught:
        read_encoding(message)
    assert wire_path(message, caught.value.field) == "options.encoding_format"


def test_results_of_classify_and_tag() -> None:
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


def test_results_of_fill_mask_and_answer() -> None:
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


def test_results_of_rerank() -> None:
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


def test_a_stream_keeps_what_earlier_messages_said() -> None:
    packed = pb.EmbedOptions(dimensions=8, encoding_format=pb.ENCODING_FORMAT_FLOAT16_BYTES)
    length = pb.LengthOptions(max_tokens=9)
    codec, items = decode(
        pb.EmbedStreamRequest(id=5, model="m", version="2", inputs=["a"], options=packed),
        pb.EmbedStreamRequest(id=5, inputs=["b", "c"], length=length),
        pb.EmbedStreamRequest(id=6, model="n", options=pb.EmbedOptions(normalize=True)),
    )
    nine = LengthOptions(max_tokens=9)
    assert items == [
        BulkItem(5, EmbedRequest(model="m", version="2", inputs=("a",), dimensions=8)),
        BulkItem(
            5,
            EmbedRequest(model="m", version="2", inputs=("b", "c"), dimensions=8, length=nine),
        ),
        BulkItem(6, EmbedRequest(model="n", normalize=True, length=nine)),
    ]
    responses = [codec.response(item.id, embed_result()) for item in items]
    assert [response.id for response in responses] == [5, 5, 6]
    sizes = [(len(x.outputs[0].values), len(x.outputs[0].packed)) for x in responses]
    assert sizes == [(0, 6), (0, 6), (3, 0)]
    for response in responses:
        assert_shared_fields(response, response.outputs)


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        (pb.EmbedStreamRequest(options={"encoding_format": 9}), "options.encoding_format"),
        (pb.EmbedStreamRequest(length={"long_input": 9}), "length.long_input"),
    ],
)
def test_a_bad_message_of_a_stream_is_an_item(bad: pb.EmbedStreamRequest, path: str) -> None:
    bad.id = 2
    _, items = decode(pb.EmbedStreamRequest(id=1, model="m", inputs=["a"]), bad)
    assert items[0] == BulkItem(1, EmbedRequest(model="m", inputs=("a",)))
    assert items[1].id == 2
    assert isinstance(items[1].request, ServeError)
    assert isinstance(items[1].request, InvalidArgumentError)
    assert wire_path(bad, items[1].request.field) == path
