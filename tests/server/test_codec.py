"""Decoding encoder requests from protobuf: all fields, defaults, and field paths of errors."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
from google.protobuf.message import Message

from model.bundle import EmbeddingKind, ScoreFunction
from protos.triune.v1 import encoding_pb2 as pb
from server.errors import InvalidArgumentError
from server.frontends.grpc.codec import decode, wire_path
from server.service.answer import AnswerRequest, Question
from server.service.classify import ClassifyRequest
from server.service.embedding import EmbedRequest
from server.service.encoder_options import LengthOptions
from server.service.fill_mask import FillMaskRequest
from server.service.input_types import InputType
from server.service.rerank import RerankRequest
from server.service.tag import TagRequest
from server.service.text_pairs import TextPair
from server.text.entities import Aggregation
from server.text.windows import LongInput

REQUESTS: tuple[tuple[type[Message], Any], ...] = (
    (
        pb.EmbedRequest,
        EmbedRequest(
            model="m",
            version="2",
            inputs=("a", "b"),
            images=(b"c",),
            dimensions=8,
            normalize=False,
            prompt_name="query",
            prompt="q: ",
            input_type=InputType.QUERY,
            token_embeddings=True,
            max_active_dims=9,
            vectors=(EmbeddingKind.SPARSE, EmbeddingKind.MULTI_VECTOR),
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
            images=(b"f", b"g"),
            audio=(b"h", b"i"),
            top_k=3,
            score_function=ScoreFunction.SIGMOID,
            candidate_labels=("x", "y"),
            hypothesis_template="It is {}.",
            multi_label=True,
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
            candidate_labels=("x", "y"),
            nested=True,
            multi_label=True,
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
            vectors=(EmbeddingKind.MULTI_VECTOR, EmbeddingKind.DENSE),
            weights=(0.5, 2.0),
            length=LengthOptions(long_input=LongInput.WINDOWS, max_tokens=9, stride=3),
        ),
    ),
)
NAMES = [message.DESCRIPTOR.name for message, _ in REQUESTS]
# Used by the codec only: the service request does not contain the response encoding.
CODEC_FIELDS = {"encoding_format"}


def flattened_fields(request: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of all fields, option groups flattened."""
    for field in fields(request):
        value = getattr(request, field.name)
        if is_dataclass(value):
            yield from flattened_fields(value)
        else:
            yield field.name, value


def is_group(field: Any) -> bool:
    """Whether the field is an option group, i.e. a singular message."""
    return field.message_type is not None and not field.is_repeated


def protobuf_names(descriptor: Any) -> set[str]:
    """Protobuf field names, option groups flattened."""
    names = set()
    for field in descriptor.fields:
        if is_group(field):
            names |= {inner.name for inner in field.message_type.fields}
        else:
            names.add(field.name)
    return names


def owner_of(message: Message, name: str) -> Message:
    """The message or option group that contains the field."""
    if name in message.DESCRIPTOR.fields_by_name:
        return message
    descriptor: Any = message.DESCRIPTOR
    (group,) = [
        field.name
        for field in descriptor.fields
        if is_group(field) and name in field.message_type.fields_by_name
    ]
    owner: Message = getattr(message, group)
    return owner


def protobuf_value(owner: Message, name: str, value: Any) -> Any:
    """Converts ``value`` to the protobuf field's type."""
    field = owner.DESCRIPTOR.fields_by_name[name]
    if isinstance(value, Enum) and field.enum_type is not None:
        (number,) = [x.number for x in field.enum_type.values if x.name.endswith(f"_{value.name}")]
        return number
    return value


def encode_message(kind: type[Message], request: Any) -> Message:
    """Encodes ``request`` by walking the descriptors: the inverse of ``decode``."""
    message = kind()
    for name, value in flattened_fields(request):
        owner = owner_of(message, name)
        if not isinstance(value, tuple):
            setattr(owner, name, protobuf_value(owner, name, value))
            continue
        for item in value:
            if is_dataclass(item):
                getattr(owner, name).add(**dict(flattened_fields(item)))
            else:
                getattr(owner, name).append(protobuf_value(owner, name, item))
    return message


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=NAMES)
def test_requests_decode_every_field(kind: type[Message], request_: Any) -> None:
    assert decode(encode_message(kind, request_), type(request_)) == request_
    defaults = dict(flattened_fields(type(request_)(model="")))
    unchanged = {name for name, value in flattened_fields(request_) if value == defaults[name]}
    assert not unchanged, "each field of the example differs from its default"


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=NAMES)
def test_request_fields_match_the_protobuf_fields(kind: type[Message], request_: Any) -> None:
    names = protobuf_names(kind.DESCRIPTOR)
    assert {name for name, _ in flattened_fields(request_)} == names - CODEC_FIELDS


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=NAMES)
def test_empty_message_decodes_to_defaults(kind: type[Message], request_: Any) -> None:
    assert decode(kind(), type(request_)) == type(request_)(model="")


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=NAMES)
def test_errors_name_the_protobuf_field(kind: type[Message], request_: Any) -> None:
    message = kind()
    for name, _ in flattened_fields(request_):
        owner = owner_of(message, name)
        group = next(
            (x.name for x in kind.DESCRIPTOR.fields if x.message_type is owner.DESCRIPTOR), None
        )
        expected = name if owner is message else f"{group}.{name}"
        assert wire_path(message, f"{name}[1]") == f"{expected}[1]"


def enum_fields() -> Iterator[tuple[type[Message], Any, str]]:
    for kind, request in REQUESTS:
        for name, value in flattened_fields(request):
            if isinstance(value, Enum):
                yield kind, type(request), name


@pytest.mark.parametrize(
    ("kind", "request_kind", "name"),
    list(enum_fields()),
    ids=[f"{kind.DESCRIPTOR.name}.{name}" for kind, _, name in enum_fields()],
)
def test_decodes_every_enum_value(kind: type[Message], request_kind: Any, name: str) -> None:
    message = kind()
    owner: Any = owner_of(message, name)
    values = owner.DESCRIPTOR.fields_by_name[name].enum_type.values
    for value in values[1:]:
        setattr(owner, name, value.number)
        member = dict(flattened_fields(decode(message, request_kind)))[name]
        assert value.name.endswith(f"_{member.name}")
    assert values[0].name.endswith("_UNSPECIFIED")
    assert len(values) - 1 == len(type(member).__members__)
    setattr(owner, name, 99)
    with pytest.raises(InvalidArgumentError) as caught:
        decode(message, request_kind)
    error = caught.value
    assert (error.field, error.description) == (name, "99 is not a value of this enum")
