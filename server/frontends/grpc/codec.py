"""Converts between protobuf messages and the service's types, field by field, by name.

On the wire, options are grouped in nested messages (``sampling.temperature``). Each field of a
request is looked up by its name, first in the message, then in its groups, so a new option needs
no code here.
"""

import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from server.bounds import Size, size_of
from server.errors import InvalidArgumentError

T = TypeVar("T")
M = TypeVar("M", bound=Message)
FieldDecoder = Callable[[Any, str], Any]
"""Decodes the value of a field that is set. The string is the field's path, for errors."""


def decode(message: Message, kind: type[T], path: str = "") -> T:
    """Decodes ``message`` into a ``kind``. Fields that are not set keep their defaults.

    Args:
        message: the protobuf message.
        kind: the request type, a frozen dataclass.
        path: prefix of field names in errors, for messages nested in a request.

    Raises:
        InvalidArgumentError: an enum field has an unknown value.
    """
    given: dict[str, Any] = {}
    for field in _plan(message.DESCRIPTOR, typing.cast("typing.Hashable", kind)):
        if field.nested is not None:
            given[field.name] = decode(message, field.nested, path)
            continue
        holder = message if field.group is None else getattr(message, field.group)
        if field.is_set(holder):
            given[field.name] = field.decode(getattr(holder, field.name), path + field.name)
    return kind(**given)


def wire_path(message: Message, path: str) -> str:
    """Converts a field's path to that on the wire: ``top_p`` → ``sampling.top_p``."""
    found = re.match(r"\w+", path)
    if found is None:
        return path
    group = _find(message.DESCRIPTOR, found[0])
    return path if group is None else ".".join(filter(None, (group[0], path)))


@dataclass(frozen=True, slots=True)
class _Field:
    """How to decode one field of a request.

    ``nested`` is the type of a group of options, whose fields are looked up in the whole message.
    """

    name: str
    group: str | None
    is_set: Callable[[Any], bool]
    decode: FieldDecoder
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
            convert = _checked(_decoder(source, hint), source, size_of(field))
            plan.append(_Field(field.name, group, _is_set(source), convert))
        elif isinstance(hint, type) and is_dataclass(hint):
            plan.append(_Field(field.name, None, lambda _: True, _as_is, hint))
    return tuple(plan)


def _find(descriptor: Any, name: str) -> tuple[str | None, FieldDescriptor] | None:
    """The field called ``name``, and the group that contains it (``None``: the message itself)."""
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


def _decoder(source: FieldDescriptor, hint: Any) -> FieldDecoder:
    item = _item(hint)
    if source.enum_type is not None:
        one = _enum_decoder(source.enum_type, item)
        if not source.is_repeated:
            return one
        return lambda value, name: tuple(one(x, f"{name}[{i}]") for i, x in enumerate(value))
    if source.message_type is None:
        return (lambda value, _: tuple(value)) if source.is_repeated else _as_is
    if source.message_type.GetOptions().map_entry:
        return lambda value, _: tuple(sorted(value.items()))
    one = _message_decoder(source.message_type, item)
    if source.is_repeated:
        return lambda value, name: tuple(one(entry, name) for entry in value)
    return one


def _checked(convert: FieldDecoder, source: FieldDescriptor, size: Size | None) -> FieldDecoder:
    """Wraps ``convert`` with a check of the number of items before any is converted."""
    if size is None or not source.is_repeated:
        return convert
    row = source.message_type

    def checked(value: Any, name: str) -> Any:
        size.check_count(name, value)
        if size.max_total is not None and row is not None:
            (inner,) = row.fields
            size.check_total(name, [len(getattr(entry, inner.name)) for entry in value])
        return convert(value, name)

    return checked


def _as_is(value: Any, _: str) -> Any:
    return value


def _item(hint: Any) -> Any:
    """The item type: ``X`` of ``X | None`` and of ``tuple[X, ...]``."""
    if isinstance(hint, types.UnionType):
        (hint,) = [part for part in typing.get_args(hint) if part is not type(None)]
    elif typing.get_origin(hint) is tuple:
        hint = typing.get_args(hint)[0]
    return hint


def _message_decoder(descriptor: Descriptor, item: Any) -> FieldDecoder:
    if item in _REGISTERED:
        return _REGISTERED[item]
    if is_dataclass(item):
        return lambda value, name: decode(value, typing.cast("type[Any]", item), f"{name}.")
    # The message only wraps a list of numbers, such as TokenIds.
    (inner,) = descriptor.fields
    return lambda value, _: tuple(getattr(value, inner.name))


def _enum_decoder(descriptor: EnumDescriptor, kind: type[Enum]) -> FieldDecoder:
    values = enum_values(descriptor, kind)

    def convert(number: int, name: str) -> Enum:
        if number not in values:
            raise InvalidArgumentError(name, f"{number} is not a value of this enum")
        return values[number]

    return convert


@cache
def enum_values(descriptor: EnumDescriptor, kind: type[Enum]) -> Mapping[int, Enum]:
    """Members of ``kind`` by wire number: ``EARLY_STOPPING_FIRST`` is ``EarlyStopping.FIRST``."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", descriptor.name).upper() + "_"
    return {
        value.number: kind[value.name.removeprefix(prefix)]
        for value in descriptor.values
        if value.name.removeprefix(prefix) in kind.__members__
    }


def encode(value: Any, kind: type[M]) -> M:
    """Encodes ``value``, whose attributes have the names of the message's fields.

    ``None`` and ``msgspec.UNSET`` leave a field unset.

    Use it only for rare messages: it looks up every field by name.

    Raises:
        AttributeError: ``value`` lacks a field.
    """
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        item, target = getattr(value, field.name), getattr(message, field.name)
        if item is None or item is msgspec.UNSET:
            continue
        if field.enum_type is not None:
            values = enum_values(field.enum_type, typing.cast("typing.Hashable", type(item)))
            item = next(number for number, member in values.items() if member == item)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.message_type is not None and not is_map:
            inner = GetMessageClass(typing.cast("Descriptor", field.message_type))
            item = (
                [encode(one, inner) for one in item] if field.is_repeated else encode(item, inner)
            )
        if is_map:
            _update(target, item, field.message_type)
        elif field.is_repeated:
            target.extend(item)
        elif field.message_type is not None:
            target.CopyFrom(item)
            target.SetInParent()
        else:
            setattr(message, field.name, item)
    return message


def _update(target: Any, items: Mapping[Any, Any], entry: Any) -> None:
    """Copies ``items`` to ``target``, a map of scalars or of messages with entries ``entry``."""
    of_value = entry.fields_by_name["value"].message_type
    if of_value is None:
        target.update(items)
        return
    kind = GetMessageClass(of_value)
    for key, item in items.items():
        target[key].CopyFrom(encode(item, kind))


_REGISTERED: dict[Any, FieldDecoder] = {}


def register(kind: type, decoder: FieldDecoder) -> None:
    """Decodes messages into ``kind`` with ``decoder`` instead of by field names."""
    _REGISTERED[kind] = decoder
