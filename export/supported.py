"""Checks that end in a message of what is supported."""

from collections.abc import Mapping
from typing import TypeVar

from export.errors import UnsupportedError
from export.readers.fields import Fields

_T = TypeVar("_T")


def lookup(table: Mapping[str, _T], name: str, what: str) -> _T:
    """``table[name]``.

    Raises:
        UnsupportedError: there is no such entry; the message lists those there are.
    """
    if name not in table:
        raise UnsupportedError(f"{what} {name!r} is not supported; {', '.join(table)} are")
    return table[name]


def check_supported(config: Fields, **allowed: tuple[object, ...]) -> None:
    """Checks that each field named is absent or has one of the values ``allowed``.

    Raises:
        UnsupportedError: lists every field that has another.
    """
    problems = [
        f"{name} {config[name]!r} is not supported; {', '.join(map(repr, values))} is"
        for name, values in allowed.items()
        if config.get(name) is not None and config[name] not in values
    ]
    if problems:
        raise UnsupportedError(f"{config.origin}: {'; '.join(problems)}")
