"""Shared by all importers: limits, head sizes, names, tokens that are never generated."""

import re
from pathlib import Path

from export.errors import SourceError
from export.readers.hugging_face import HuggingFaceFolder

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


def suppressed_tokens(folder: HuggingFaceFolder) -> tuple[int, ...]:
    """Tokens that are never generated; "bad words" of several tokens are not included."""
    config, generation = folder.config, folder.generation_config
    words = generation.get("bad_words_ids") or config.get("bad_words_ids")
    single = [
        word[0]
        for word in (words if isinstance(words, list) else ())
        if isinstance(word, list) and len(word) == 1 and type(word[0]) is int
    ]
    listed = generation.integers("suppress_tokens") or config.integers("suppress_tokens")
    return tuple(sorted({*single, *listed}))
