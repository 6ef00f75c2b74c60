"""Loads ``tokenizer.json`` in parts, so that other threads run in between.

The library holds the interpreter lock while it parses a file: for 0.2 s, or for a second on a busy
machine, during which every stream of the server would wait. Its constructors take the same
vocabulary from Python in a third of the time, and a file's parts can be decoded one by one.
"""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, models

# Smaller files are parsed as a whole, in less than 20 ms.
_LARGE_BYTES = 1 << 18


class _Model(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that the model's constructor takes; with others, the library parses the file."""

    type: str
    vocab: msgspec.Raw
    merges: msgspec.Raw = msgspec.Raw(b"[]")
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    max_input_chars_per_word: int = 100
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    added_tokens: list[dict[str, Any]]
    model: _Model
    version: msgspec.Raw = msgspec.Raw(b"null")
    truncation: msgspec.Raw = msgspec.Raw(b"null")
    padding: msgspec.Raw = msgspec.Raw(b"null")
    normalizer: msgspec.Raw = msgspec.Raw(b"null")
    pre_tokenizer: msgspec.Raw = msgspec.Raw(b"null")
    post_processor: msgspec.Raw = msgspec.Raw(b"null")
    decoder: msgspec.Raw = msgspec.Raw(b"null")


_EMPTY_MODEL = msgspec.Raw(b'{"type": "BPE", "vocab": {}, "merges": []}')


def load_tokenizer(path: Path) -> Tokenizer:
    """Loads the tokenizer in ``path``.

    Raises:
        Exception: the file is not a tokenizer, or cannot be read.
    """
    if path.stat().st_size >= _LARGE_BYTES:
        found = _load_parts(path.read_bytes())
        if found is not None:
            return found
    return Tokenizer.from_file(str(path))


def _load_parts(data: bytes) -> Tokenizer | None:
    """Loads a tokenizer in parts; None if only the library can read the file."""
    try:
        file = msgspec.json.decode(data, type=_File)
        model = _model(file.model)
    except Exception:  # the library raises plain Exception
        return None  # parsing the whole file then reports the error
    if model is None:
        return None
    rest = {name: getattr(file, name) for name in file.__struct_fields__}
    rest |= {"model": _EMPTY_MODEL, "added_tokens": []}
    tokenizer = Tokenizer.from_str(msgspec.json.encode(rest).decode())
    tokenizer.model = model
    expected = {token.pop("id"): token["content"] for token in file.added_tokens}
    # The library does the same: a special token may be in the vocabulary.
    tokenizer.add_tokens([AddedToken(**token) for token in file.added_tokens])
    added = tokenizer.get_added_tokens_decoder()
    is_equal = {id_: token.content for id_, token in added.items()} == expected
    return tokenizer if is_equal else None


def _model(model: _Model) -> Any:
    """Builds the library's model; None if its type is not supported here."""
    if model.type == "BPE":
        given = {
            "dropout": model.dropout,
            "unk_token": model.unk_token,
            "continuing_subword_prefix": model.continuing_subword_prefix,
            "end_of_word_suffix": model.end_of_word_suffix,
        }
        return models.BPE(
            msgspec.json.decode(model.vocab, type=dict[str, int]),
            msgspec.json.decode(model.merges, type=list[tuple[str, str]]),
            fuse_unk=model.fuse_unk,
            byte_fallback=model.byte_fallback,
            ignore_merges=model.ignore_merges,
            **{name: value for name, value in given.items() if value is not None},
        )
    prefix = model.continuing_subword_prefix
    if model.type == "WordPiece" and model.unk_token is not None and prefix is not None:
        return models.WordPiece(
            msgspec.json.decode(model.vocab, type=dict[str, int]),
            unk_token=model.unk_token,
            max_input_chars_per_word=model.max_input_chars_per_word,
            continuing_subword_prefix=prefix,
        )
    # Unigram is not supported: the library does not round some scores to the nearest double.
    return None
