"""Protobuf requests to frozen requests, field by field, by name.

A request of the service is a flat dataclass; on the wire its options are grouped in messages
(``sampling.temperature``). Each field is looked up by its name, in the message itself and then in
its groups, so a new option needs no line here.
"""

import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from server.errors import InvalidArgumentError

T = TypeVar("T")
Read = Callable[[Any, str], Any]
"""Reads a protobuf value that is set; the string is its field's path, for errors."""


def read(message: Message, kind: type[T], path: str = "") -> T:
    """The request that ``message`` holds. A field that is not set keeps its default.

    Args:
        message: as it came.
        kind: a frozen dataclass.
        path: put before field names in errors, for messages inside a request.

    Raises:
        InvalidArgumentError: an enumeration has no such value.
    """
    given: dict[str, Any] = {}
    for field in _plan(message.DESCRIPTOR, typing.cast("typing.Hashable", kind)):
        if field.nested is not None:
            given[field.name] = read(message, field.nested, path)
            continue
        holder = message if field.group is None else getattr(message, field.group)
        if field.is_set(holder):
            given[field.name] = field.read(getattr(holder, field.name), path + field.name)
    return kind(**given)


def wire_path(message: Message, path: str) -> str:
    """Where a field of the service's request is on the wire: ``top_p`` → ``sampling.top_p``."""
    found = re.match(r"\w+", path)
    if found is None:
        return path
    group = _find(message.DESCRIPTOR, found[0])
    return path if group is None else ".".join(filter(None, (group[0], path)))


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field of a request is read.

    ``nested``: a group of options, whose fields are looked up in the whole message.
    """

    name: str
    group: str | None
    is_set: Callable[[Any], bool]
    read: Read
    nested: type | None = None


@cache
def _plan(descriptor: Any, kind: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind)
    plan = []
    for field in fields(kind):
        hint = hints[field.name]
        found = _find(descriptor, field.name)
        if found is not None and not (is_dataclass(hint) and found[1].message_type is not None):
            group, source = found
            plan.append(_Field(field.name, group, _is_set(source), _reader(source, hint)))
        elif isinstance(hint, type) and is_dataclass(hint):
            plan.append(_Field(field.name, None, lambda _: True, _as_is, hint))
    return tuple(plan)


def _find(descriptor: Any, name: str) -> tuple[str | None, FieldDescriptor] | None:
    """The group (``None``: the message itself) and the field of this name."""
    own = descriptor.fields_by_name.get(name)
    if own is not None:
        return None, own
    for group in descriptor.fields:
        if group.message_type is not None and not group.is_repeated:
            inner = group.message_type.fields_by_name.get(name)
            if inner is not None:
                return group.name, inner
    return None


def _is_set(source: FieldDescriptor) -> Callable[[Any], bool]:
    if source.has_presence:
        return lambda holder: bool(holder.HasField(source.name))
    if source.enum_type is not None:
        return lambda holder: getattr(holder, source.name) != 0  # UNSPECIFIED
    return lambda _: True


def _reader(source: FieldDescriptor, hint: Any) -> Read:
    item = _item(hint)
    if source.enum_type is not None:
        return _enum_reader(source.enum_type, item)
    if source.message_type is None:
        return (lambda value, _: tuple(value)) if source.is_repeated else _as_is
    if source.message_type.GetOptions().map_entry:
        return lambda value, _: tuple(sorted(value.items()))
    one = _message_reader(source.message_type, item)
    if source.is_repeated:
        return lambda value, name: tuple(one(entry, name) for entry in value)
    return one


def _as_is(value: Any, _: str) -> Any:
    return value


def _item(hint: Any) -> Any:
    """``X`` of ``X | None`` and of ``tuple[X, ...]``."""
    if isinstance(hint, types.UnionType):
        (hint,) = [part for part in typing.get_args(hint) if part is not type(None)]
    elif typing.get_origin(hint) is tuple:
        hint = typing.get_args(hint)[0]
    return hint


def _message_reader(descriptor: Descriptor, item: Any) -> Read:
    if item in _SPECIAL:
        return _SPECIAL[item]
    if is_dataclass(item):
        return lambda value, name: read(value, typing.cast("type[Any]", item), f"{name}.")
    # A list of numbers in a message of its own.
    (inner,) = descriptor.fields
    return lambda value, _: tuple(getattr(value, inner.name))


def _enum_reader(descriptor: EnumDescriptor, kind: type[Enum]) -> Read:
    values = enum_values(descriptor, kind)

    def convert(number: int, name: str) -> Enum:
        if number not in values:
            raise InvalidArgumentError(name, f"{number} is not one of its values")
        return values[number]

    return convert


@cache
def enum_values(descriptor: EnumDescriptor, kind: type[Enum]) -> Mapping[int, Enum]:
    """Wire numbers to members: ``EARLY_STOPPING_FIRST`` is ``EarlyStopping.FIRST``."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", descriptor.name).upper() + "_"
    return {
        value.number: kind[value.name.removeprefix(prefix)]
        for value in descriptor.values
        if value.name.removeprefix(prefix) in kind.__members__
    }


_SPECIAL: dict[Any, Read] = {}


def register(kind: type, reader: Read) -> None:
    """Reads messages into ``kind`` by ``reader`` instead of by field names."""
    _SPECIAL[kind] = reader
