"""Requests to encoders: every field of the wire arrives, and errors name the wire's fields."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
from google.protobuf.message import Message

from model.bundle import ScoreFunction
from protos.triune.v1 import encoding_pb2 as pb
from server.errors import InvalidArgumentError
from server.frontends.grpc.codec import read, wire_path
from server.service.answer import AnswerRequest, Question
from server.service.classify import ClassifyRequest, TextPair
from server.service.embed import EmbedRequest
from server.service.encoder_options import LengthOptions
from server.service.fill_mask import FillMaskRequest
from server.service.rerank import RerankRequest
from server.service.tag import TagRequest
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


def is_group(field: Any) -> bool:
    """Whether a field's descriptor is of a group of options."""
    return field.message_type is not None and not field.is_repeated


def wire_names(descriptor: Any) -> set[str]:
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
    descriptor: Any = message.DESCRIPTOR
    (group,) = [
        field.name
        for field in descriptor.fields
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
    list(enum_fields()),
    ids=[f"{kind.DESCRIPTOR.name}.{name}" for kind, _, name in enum_fields()],
)
def test_every_value_of_an_enumeration_is_known(
    kind: type[Message], request_kind: Any, name: str
) -> None:
    message = kind()
    holder: Any = holder_of(message, name)
    values = holder.DESCRIPTOR.fields_by_name[name].enum_type.values
    for value in values[1:]:
        setattr(holder, name, value.number)
        member = dict(leaves(read(message, request_kind)))[name]
        assert value.name.endswith(f"_{member.name}")
    assert values[0].name.endswith("_UNSPECIFIED")
    assert len(values) - 1 == len(type(member).__members__)
    setattr(holder, name, 99)
    with pytest.raises(InvalidArgumentError) as caught:
        read(message, request_kind)
    assert (caught.value.field, caught.value.description) == (name, "99 is not one of its values")
