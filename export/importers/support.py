"""Shared by all importers: limits, head sizes, names."""

import re
from pathlib import Path

from export.errors import SourceError

# A file with more layers is damaged or hostile; refusing it early saves memory.
MAX_LAYERS = 1024


def divide_heads(origin: str, hidden_size: int, num_heads: int) -> int:
    """The size of a head.

    Raises:
        SourceError: ``num_heads`` does not divide ``hidden_size``.
    """
    if hidden_size % num_heads:
        raise SourceError(f"{origin}: {num_heads} heads do not divide the size {hidden_size}")
    return hidden_size // num_heads


def bundle_name(path: Path) -> str:
    """A bundle's name (``model.bundle.NAME_PATTERN``) from the name of a file or folder."""
    name = path.resolve().stem if path.is_file() else path.resolve().name
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"
