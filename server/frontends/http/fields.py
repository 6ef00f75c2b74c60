"""Maps the service's options to flat fields of a JSON body, by name.

A body type that is built from the service's option types accepts every one of their options by its
name, so a new option needs no code here.
"""

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def flat_body(
    name: str, base: type[msgspec.Struct], request: type, without: Iterable[str] = ()
) -> type[Any]:
    """Makes a struct with the fields of ``base`` and, as optional fields, a request's options.

    Args:
        name: the name of the struct.
        base: the struct with the protocol's fields, which have precedence.
        request: the type of a request. Of its groups of options, the fields with numbers, strings,
            enums or tuples of those are added.
        without: names of fields to leave out.
    """
    taken = {*without, *(field.name for field in msgspec.structs.fields(base))}
    added = []
    for group in typing.get_type_hints(request).values():
        if not is_dataclass(group):
            continue
        hints = typing.get_type_hints(group)
        for field in fields(group):
            hint = hints[field.name]
            if field.name not in taken and _is_plain(hint):
                added.append((field.name, typing.Optional[hint], None))  # noqa: UP045
    return msgspec.defstruct(name, added, bases=(base,), kw_only=True, module=base.__module__)


def options_of(body: Any, kind: type[T], given: Mapping[str, Any] | None = None) -> T:
    """Builds a ``kind`` from the fields of ``body``. ``None`` and missing fields keep defaults.

    Args:
        body: a struct.
        kind: the type of a request or of a group of options. Fields that are groups of options
            themselves are filled from the whole body.
        given: values by field name that override those of the body; ``None`` keeps the default.
    """
    values: dict[str, Any] = {}
    for name, group in _plan(typing.cast("typing.Hashable", kind)):
        if given is not None and name in given:
            value = given[name]
        elif group is not None:
            value = options_of(body, group, given)
        else:
            value = getattr(body, name, None)
        if value is not None:
            values[name] = value
    return kind(**values)


def given_names(body: Any, names: Iterable[str]) -> list[str]:
    """Those of ``names`` whose fields ``body`` has. ``None`` and missing fields are not given."""
    return [name for name in names if getattr(body, name, None) is not None]


@cache
def _plan(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, hints[field.name] if is_dataclass(hints[field.name]) else None)
        for field in fields(kind)
    )


def _is_plain(hint: Any) -> bool:
    """Whether the type's values are JSON scalars or arrays of scalars."""
    if typing.get_origin(hint) is types.UnionType or typing.get_origin(hint) is typing.Union:
        return all(_is_plain(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return all(part is Ellipsis or _is_plain(part) for part in typing.get_args(hint))
    if hint is type(None):
        return True
    return isinstance(hint, type) and issubclass(hint, (bool, int, float, str, Enum))
