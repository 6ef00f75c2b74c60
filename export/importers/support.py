"""What every importer needs: lookups that say what is supported, and names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields

_T = TypeVar("_T")

# A file that claims more is damaged or hostile, and would only cost memory.
MAX_LAYERS = 1024


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


def divide_heads(origin: str, hidden_size: int, num_heads: int) -> int:
    """The size of a head.

    Raises:
        SourceError: ``num_heads`` does not divide ``hidden_size``.
    """
    if hidden_size % num_heads:
        raise SourceError(f"{origin}: {num_heads} heads do not divide the size {hidden_size}")
    return hidden_size // num_heads


def bundle_name(path: Path) -> str:
    """A bundle's name (``model.bundle.NAME_PATTERN``) from that of a file or folder."""
    name = path.resolve().stem if path.is_file() else path.resolve().name
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"
