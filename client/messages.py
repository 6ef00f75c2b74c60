"""Converts Python values to protobuf messages and back, by field name, without validation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)
EnumT = TypeVar("EnumT", bound=StrEnum)
ValueT = TypeVar("ValueT")


def build(
    request: type[MessageT], schema: type, options: Mapping[str, object], **own: object
) -> MessageT:
    """Builds a request from its ``own`` fields and ``options``.

    An option goes to the field of its name: in the request itself, or in one of its nested
    messages (``sampling``, ``stopping``, ``length``, ...). ``None`` leaves a field unset.

    Args:
        request: the message type.
        schema: the ``TypedDict`` of ``options``.
        own: fields that are not options, as for the constructor of ``request``.

    Raises:
        TypeError: an option is not in ``schema``, or a value has the wrong type.
        ValueError: a value is out of its field's range; the message names the option.
    """
    if unknown := options.keys() - schema.__annotations__.keys():
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    kind: Any = request
    option_fields = _option_fields(kind)
    values: dict[str, Any] = {group: {} for group, _ in option_fields.values() if group} | own
    for name, value in options.items():
        if value is not None:
            group, field = option_fields[name]
            (values[group] if group else values)[name] = _to_wire(field, value)
    try:
        return request(**values)
    except ValueError:
        _check_each(kind, options.keys(), values)
        raise


def _check_each(request: Any, options: Iterable[str], values: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` with the name of the first option that its field does not take."""
    for name in options:
        group, _ = _option_fields(request)[name]
        given = values[group] if group else values
        alone = {name: given[name]} if name in given else {}
        try:
            request(**({group: alone} if group else alone))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def read_fields(kind: type[ValueT], message: Message, **given: object) -> ValueT:
    """Fills a dataclass of scalars from the fields of the same names in ``message``.

    Args:
        given: values that override those of ``message``, by field name.
    """
    dataclass: Any = kind
    read = {name: getattr(message, name) for name in _names(dataclass) if name not in given}
    return kind(**read, **given)


def enum_members(kind: type[EnumT], enum: Any) -> dict[int, EnumT]:
    """The members of ``kind`` by their numbers in ``enum``, a protobuf enum.

    "Unspecified" and values that only newer servers know are left out.
    """
    numbers = dict(enum.items())
    prefix = _prefix(enum.DESCRIPTOR)
    return {numbers[f"{prefix}{member.name}"]: member for member in kind}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


@cache
def _option_fields(request: Any) -> dict[str, tuple[str, FieldDescriptor]]:
    """The fields of a request and of its nested messages, by field name.

    Each value is the name of the nested message that contains the field, empty for the request
    itself, and the field.
    """
    own = _fields(request)
    found = {name: ("", field) for name, field in own.items()}
    for group, field in own.items():
        if field.message_type is not None and not field.is_repeated:
            nested = field.message_type.fields_by_name
            if twice := found.keys() & nested.keys():
                raise TypeError(f"{request.DESCRIPTOR.name} has {', '.join(sorted(twice))} twice")
            found |= {name: (group, each) for name, each in nested.items()}
    return found


def _fields(message: Message | type[Message]) -> Any:
    """Descriptors of the fields of a message type, by name."""
    return message.DESCRIPTOR.fields_by_name


def _to_wire(field: Any, value: Any) -> Any:
    """Converts ``value`` to what the constructor of the field's message accepts."""
    if isinstance(value, str) and field.is_repeated:
        value = [value]  # one text, not its characters
    if field.enum_type is not None and field.is_repeated:
        return [f"{_prefix(field.enum_type)}{str(item).upper()}" for item in value]
    if field.enum_type is not None:
        return f"{_prefix(field.enum_type)}{str(value).upper()}"
    if field.is_repeated and isinstance(value, Sequence):
        return [_to_wire_item(field, item) for item in value]
    return _to_wire_item(field, value)


def _to_wire_item(field: Any, value: Any) -> Any:
    if is_dataclass(value):
        nested = field.message_type.fields_by_name
        return {
            each.name: _to_wire(nested[each.name], item)
            for each in fields(value)
            if (item := getattr(value, each.name)) is not None
        }
    return value


def _prefix(enum: Any) -> str:
    """The prefix of an enum's value names: ``EARLY_STOPPING_`` in ``EARLY_STOPPING_NEVER``."""
    unspecified: str = enum.values_by_number[0].name
    return unspecified.removesuffix("UNSPECIFIED")
