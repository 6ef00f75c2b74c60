"""Fills requests with well-typed fields and plausible or extreme values."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.draw import Draw

INTEGERS = (0, 1, 2, 3, 5, 7, 16, 47, 48, 64, 98, 99, 100, -1, -100, 2**31 - 1, -(2**31))
WIDE = (*INTEGERS, 2**31, 2**63 - 1, -(2**63))
NATURAL = (*(value for value in INTEGERS if value >= 0), 2**32 - 1)
REALS = (0.0, 1.0, 0.5, 0.9, 1e-3, 1e-45, 1.5, 2.0, 100.0, -0.0, -1.0, -2.0, 1e30, -1e30)
SPECIAL = (float("nan"), float("inf"), float("-inf"), 5e-324, 1.7e308)
TEXTS = ("1", "12,", "3 March 2021", "paris", "[MASK]", "a [MASK] b", "O", "B-PER", "</s>", "", " ")
MAX_REPEATED, MAX_DEPTH = 3, 4

_Kind = FieldDescriptor
_NUMBERS: dict[int, tuple[float, ...]] = {
    _Kind.TYPE_INT32: INTEGERS,
    _Kind.TYPE_INT64: WIDE,
    _Kind.TYPE_UINT32: NATURAL,
    _Kind.TYPE_UINT64: (*NATURAL, 2**64 - 1),
    _Kind.TYPE_DOUBLE: (*REALS, *SPECIAL),
    _Kind.TYPE_FLOAT: (*REALS, *SPECIAL),
}


def fill(message: Message, draw: Draw, *, chance: int = 64, depth: int = 0) -> None:
    """Sets random fields of ``message``, each with probability ``chance`` / 256."""
    for field in message.DESCRIPTOR.fields:
        if draw.byte() >= chance or depth > MAX_DEPTH:
            continue
        _set(message, field, draw, chance, depth)


def _set(message: Message, field: Any, draw: Draw, chance: int, depth: int) -> None:
    value: Any = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        for _ in range(draw.below(MAX_REPEATED)):
            key = _scalar(entry.fields_by_name["key"], draw)
            if entry.fields_by_name["value"].message_type is None:
                value[key] = _scalar(entry.fields_by_name["value"], draw)
            else:
                fill(value[key], draw, chance=chance, depth=depth + 1)
    elif field.is_repeated:
        for _ in range(1 + draw.below(MAX_REPEATED)):
            if entry is None:
                value.append(_scalar(field, draw))
            else:
                fill(value.add(), draw, chance=160, depth=depth + 1)
    elif entry is not None:
        value.SetInParent()
        fill(value, draw, chance=chance, depth=depth + 1)
    else:
        setattr(message, field.name, _scalar(field, draw))


def _scalar(field: Any, draw: Draw) -> Any:
    if field.type in _NUMBERS:
        value = draw.choice(_NUMBERS[field.type])
        if field.type == _Kind.TYPE_FLOAT:
            value = max(min(value, 3e38), -3e38) if value == value else value  # noqa: PLR0124
        return value
    if field.type == _Kind.TYPE_BOOL:
        return draw.flag()
    if field.type == _Kind.TYPE_ENUM:
        return draw.below(len(field.enum_type.values) + 1)
    if field.type == _Kind.TYPE_BYTES:
        return draw.take(draw.below(16))
    return draw.text() if draw.byte() & 3 == 3 else draw.choice(TEXTS)
