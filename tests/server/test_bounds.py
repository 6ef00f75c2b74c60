"""Every field of every request has a bound, and what exceeds one is rejected by its name."""

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from protos.triune.v1 import inference_pb2 as pb
from scripts.bounds import REQUESTS, SECTIONS, bound_rows, options_of, requests
from server.bounds import MAX_IMAGE_BYTES, MAX_IMAGES, Size, check_fields, size_of
from server.errors import InvalidArgumentError
from server.frontends.grpc import codec
from server.frontends.grpc.status import message_of
from server.frontends.grpc.wire_size import has_too_many_fields
from server.service.classify import ClassifyRequest
from server.service.embedding import EmbedRequest
from server.service.generation_request import GenerateRequest
from tests.fuzz.targets.long_texts import text_fields


def test_every_field_of_every_request_has_a_bound() -> None:
    rows = bound_rows()
    assert {row.message for row in rows} >= {
        kind.name for kind in requests() if kind.fields and kind.name != "ListModelsRequest"
    }
    assert all(row.bound for row in rows)
    assert len(rows) > 90
    assert all(section.is_current() for section in SECTIONS), "run python -m scripts.bounds"


def test_a_field_without_a_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Unbounded:
        model: str = ""

    monkeypatch.setitem(REQUESTS, "GetModelRequest", Unbounded)
    with pytest.raises(LookupError, match=r"GetModelRequest\.model"):
        bound_rows()


Path = tuple[str, ...]
"""Field names from the request to a field."""


def size_at(kind: Any, path: Path) -> Size | None:
    """The size that the service's request declares for a field on the wire."""
    for name in path[:-1]:
        option, item = options_of(kind).get(name, (None, None))
        if option is not None and item is not None and is_dataclass(item):
            kind = item
    found = options_of(kind).get(path[-1]) if is_dataclass(kind) else None
    return None if found is None else size_of(found[0])


def sized_texts() -> Iterator[Any]:
    """Each text field whose size is declared, of each request."""
    for descriptor in requests():
        kind = REQUESTS[descriptor.name]
        for path in text_fields(descriptor):
            size = size_at(kind, path)
            if size is not None:
                name = f"{descriptor.name}-{'.'.join(path)}"
                yield pytest.param(descriptor, kind, path, size, id=name)


@pytest.mark.parametrize(("descriptor", "kind", "path", "size"), list(sized_texts()))
def test_a_text_or_list_over_its_size_is_rejected_by_name(
    descriptor: Any, kind: type, path: Path, size: Size
) -> None:
    message = descriptor._concrete_class()
    holder = message
    for name in path[:-1]:
        value = getattr(holder, name)
        holder = value.add() if hasattr(value, "add") else value
    field = holder.DESCRIPTOR.fields_by_name[path[-1]]
    if field.is_repeated:
        getattr(holder, field.name).extend(["m"] * ((size.max_items or 0) + 1))
    else:
        setattr(holder, field.name, "m" * ((size.max_bytes or 0) + 1))
    with pytest.raises(InvalidArgumentError) as caught:
        check_fields(codec.decode(message, kind))
    assert path[-1] in message_of(caught.value, message).partition(":")[0]


@pytest.mark.parametrize("kind", [EmbedRequest, ClassifyRequest])
@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([b""] * (MAX_IMAGES + 1), f"images: {MAX_IMAGES + 1} given, at most {MAX_IMAGES}"),
        ([b"", bytes(MAX_IMAGE_BYTES + 1)], f"images[1]: has more than {MAX_IMAGE_BYTES} bytes"),
    ],
    ids=["images", "bytes"],
)
def test_images_over_their_number_or_size_are_rejected_by_name(
    kind: type, images: list[bytes], message: str
) -> None:
    request: Any = getattr(pb, kind.__name__)(images=images)
    with pytest.raises(InvalidArgumentError) as caught:
        check_fields(codec.decode(request, kind))
    assert message_of(caught.value, request) == message


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GenerateRequest(token_inputs=[pb.TokenIds(ids=[5] * 600_000)]), "token_inputs"),
        (pb.GenerateRequest(token_inputs=[pb.TokenIds()] * 5000), "token_inputs"),
        (pb.GenerateRequest(messages=[pb.ChatMessage()] * 2000), "messages"),
        (
            pb.GenerateRequest(
                sampling=pb.SamplingOptions(logit_bias=dict.fromkeys(range(2000), 1.0))
            ),
            "sampling.logit_bias",
        ),
        (
            pb.GenerateRequest(stopping=pb.StoppingOptions(stop_token_ids=[1] * 2000)),
            "stopping.stop_token_ids",
        ),
    ],
    ids=["ids", "rows", "messages", "biases", "stop tokens"],
)
def test_lists_are_counted_before_they_are_converted(request_: Any, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        codec.decode(request_, GenerateRequest)
    assert message_of(caught.value, request_).partition(":")[0] == field


@pytest.mark.parametrize(
    ("data", "is_too_many"),
    [
        (b"\x12\x00" * 200_000, True),  # empty inputs
        (b"\x22\x02\x12\x00" * 100_000, True),  # messages
        (b"\x2a" + b"\x80\x80\x40" + b"\x52\x00" * (1 << 19), True),  # biases
        (b"\x1a\x84\x80\x40\x0a\x80\x80\x40" + b"\x05" * (1 << 20), True),  # token ids
        (b"\x78\x01" * 200_000, True),  # unknown fields
        (pb.GenerateRequest(inputs=["a" * 2000] * 4000).SerializeToString(), False),
        (b"\x0b" + b"\x12\x00" * 200_000 + b"\x0c", True),  # an unknown group
        (b"\x0b\x1a\x01\xff\x0c" + b"\x12\x80\x80\x10" + bytes(1 << 18), False),
    ],
    ids=["inputs", "messages", "biases", "ids", "unknown", "long texts", "group", "small group"],
)
def test_fields_are_counted_before_a_message_is_parsed(data: bytes, is_too_many: bool) -> None:
    assert has_too_many_fields(data, pb.GenerateRequest.DESCRIPTOR) is is_too_many


class CountedReads(bytes):
    """Bytes that count how often one of them is read."""

    num_reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_reads += 1
        return super().__getitem__(index)


MANY = 1 << 18
# Token ids in a message of 4 bytes whose size goes beyond it, each followed by a long text.
OVERLONG_IDS = b"\x1a\x04\x0a\x80\x80\x08" * 4000 + b"\x12\x80\x80\x10" + b"\xff" * MANY


@pytest.mark.parametrize(
    ("data", "num_reads"),
    [
        (b"\x78" + b"\xff" * MANY, 11),
        (b"\xff" * MANY, 11),
        (b"\x12" + b"\xff" * MANY, 11),
        (b"\x12\x90\x80\x40" + b"a" * MANY, 4),
        (OVERLONG_IDS, 8020),
        (b"\x07" + bytes(MANY), 1),
    ],
    ids=["number", "tag", "size", "cut short", "overlong ids", "no type"],
)
def test_malformed_messages_are_found_in_few_reads(data: bytes, num_reads: int) -> None:
    counted = CountedReads(data)
    with pytest.raises(DecodeError):
        has_too_many_fields(counted, pb.GenerateRequest.DESCRIPTOR)
    assert counted.num_reads <= num_reads
    with pytest.raises(DecodeError):
        pb.GenerateRequest.FromString(data)
