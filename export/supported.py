"""Checks whose error messages list what is supported."""

from collections.abc import Mapping
from typing import TypeVar

from export.errors import UnsupportedError
from export.readers.fields import Fields

_T = TypeVar("_T")


def lookup(table: Mapping[str, _T], name: str, what: str) -> _T:
    """``table[name]``.

    Raises:
        UnsupportedError: no such entry; the message lists the existing ones.
    """
    if name not in table:
        raise UnsupportedError(f"{what} {name!r} is not supported; supported: {', '.join(table)}")
    return table[name]


def check_supported(config: Fields, **allowed: tuple[object, ...]) -> None:
    """Checks that each given field is absent or has one of the ``allowed`` values.

    Raises:
        UnsupportedError: lists every field with another value.
    """
    problems = [
        f"{name} {config[name]!r} is not supported; supported: {', '.join(map(repr, values))}"
        for name, values in allowed.items()
        if config.get(name) is not None and config[name] not in values
    ]
    if problems:
        raise UnsupportedError(f"{config.origin}: {'; '.join(problems)}")
