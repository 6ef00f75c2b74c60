"""Generates the table of bounds in ``docs/reliability.md``.

    python -m scripts.bounds [--check]

Each row is a field of a request on the wire, with the bound that the service's request declares
beside its field. A field without one is an error, so that none can be added without a bound.
"""

import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

from protos.triune.v1 import admin_pb2, inference_pb2, models_pb2
from scripts.generated_sections import ROOT, Section, main
from server.bounds import Bounds, Size, bound_of
from server.service.answer import AnswerRequest
from server.service.attend import AttendRequest
from server.service.classify import ClassifyRequest
from server.service.correct import CorrectRequest
from server.service.embedding import EmbedRequest
from server.service.fill_mask import FillMaskRequest
from server.service.generation_options import Grammar
from server.service.generation_request import GenerateRequest, TranslateRequest
from server.service.requests import ModelRequest
from server.service.rerank import RerankRequest
from server.service.score import ScoreRequest
from server.service.tag import TagRequest
from server.service.tokenize import TokenizeRequest
from server.service.transcription_request import TranscribeRequest

# The service's request of each request on the wire.
REQUESTS: dict[str, type] = {
    "GenerateRequest": GenerateRequest,
    "GenerateStreamRequest": GenerateRequest,
    "TranslateRequest": TranslateRequest,
    "TranslateStreamRequest": TranslateRequest,
    "EmbedRequest": EmbedRequest,
    "EmbedStreamRequest": EmbedRequest,
    "ClassifyRequest": ClassifyRequest,
    "TagRequest": TagRequest,
    "CorrectRequest": CorrectRequest,
    "FillMaskRequest": FillMaskRequest,
    "AnswerRequest": AnswerRequest,
    "RerankRequest": RerankRequest,
    "ScoreRequest": ScoreRequest,
    "AttendRequest": AttendRequest,
    "TokenizeRequest": TokenizeRequest,
    "TranscribeRequest": TranscribeRequest,
    "TranscribeStreamRequest": TranscribeRequest,
    "GetModelRequest": ModelRequest,
    "ListModelsRequest": ModelRequest,
    "LoadModelRequest": ModelRequest,
    "UnloadModelRequest": ModelRequest,
}
# Fields that the service's requests lack.
_OTHERS = {
    "EmbedStreamRequest.id": "any; it is copied",
    "Choices.values": "65,536 bytes in all",
}


@dataclass(frozen=True, slots=True)
class BoundRow:
    """A field on the wire. ``checked``: where its bound is checked."""

    message: str
    field: str
    bound: str
    checked: str


def requests() -> Iterator[Any]:
    """The descriptors of all requests of all services."""
    for file in (inference_pb2, models_pb2, admin_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield method.input_type


def bound_rows() -> list[BoundRow]:
    """One row for each field of each message of a request.

    Raises:
        LookupError: names a field without a bound.
    """
    rows: dict[tuple[str, str], BoundRow] = {}
    for descriptor in requests():
        for row in _rows(descriptor, options_of(REQUESTS[descriptor.name])):
            rows.setdefault((row.message, row.field), row)
    return list(rows.values())


Options = Mapping[str, tuple["Field[Any]", Any]]


def options_of(kind: Any) -> Options:
    """The fields of a request by name, with their item types; those of groups included."""
    found: dict[str, tuple[Field[Any], Any]] = {}
    hints = typing.get_type_hints(kind)
    for option in fields(kind):
        item = _item(hints[option.name])
        found[option.name] = option, item
        if is_dataclass(item) and option.default_factory is not MISSING:
            found.update(options_of(item))
    return found


def _item(hint: Any) -> Any:
    """``X`` of ``X | None``, ``tuple[X, ...]`` and ``tuple[tuple[X, ...], ...]``."""
    parts = [part for part in typing.get_args(hint) if part not in (type(None), ...)]
    return _item(parts[0]) if parts else hint


def _rows(descriptor: Any, options: Options) -> Iterator[BoundRow]:
    for field in descriptor.fields:
        name = f"{descriptor.name}.{field.name}"
        option, item = options.get(field.name, (None, None))
        nested = field.message_type
        is_group = option is None or option.default_factory is not MISSING
        if nested is not None and not field.is_repeated and is_group:
            yield from _rows(nested, options)
            continue
        yield BoundRow(descriptor.name, field.name, *_bound(name, field, option))
        if item is Grammar:
            for inner in nested.fields:
                yield BoundRow(nested.name, inner.name, "65,536 bytes", "service")
        elif nested is not None and is_dataclass(item):
            yield from _rows(nested, options_of(item))


def _bound(name: str, field: Any, option: "Field[Any] | None") -> tuple[str, str]:
    bound = None if option is None else bound_of(option)
    if bound is not None:
        return str(bound), "`check_fields`" if isinstance(bound, Bounds | Size) else "service"
    if name in _OTHERS:
        return _OTHERS[name], "service"
    if field.enum_type is not None:
        return "a value of the enum", "codec"
    if field.type == field.TYPE_BOOL:
        return "true or false", "codec"
    if field.message_type is not None and not field.is_repeated:
        return "its fields", "below"
    raise LookupError(f"{name} has no bound: declare one beside the field of the service's request")


def table() -> str:
    """The Markdown table: messages whose fields are the same share a row."""
    merged: dict[tuple[str, str, str], list[str]] = {}
    for row in bound_rows():
        merged.setdefault((row.field, row.bound, row.checked), []).append(row.message)
    lines = ["| field | of | bound | checked by |", "|---|---|---|---|"]
    for (field, bound, checked), messages in merged.items():
        names = ", ".join(message.removesuffix("Request") for message in messages)
        lines.append(f"| `{field}` | {names} | {bound} | {checked} |")
    return "\n".join(lines)


SECTIONS = (Section(document=ROOT / "docs" / "reliability.md", name="bounds", render=table),)

if __name__ == "__main__":
    sys.exit(main("server/bounds.py", SECTIONS))
