"""Computes the bytes that each token adds to a text, with the tokenizer's decoder."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from server.text.characters import MAX_CHARACTER_BYTES, REPLACEMENT, num_incomplete_tokens

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "▁"  # SentencePiece's symbol for a space
_CONTEXT = "a"  # text for a token to follow


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """A vocabulary as bytes.

    ``tokens[id]`` are the bytes that ``id`` adds after other text. ``without_text`` lists the ids
    that add no text of their own (special tokens, the unknown token, incomplete characters);
    ``tokens`` has their names instead. ``encode`` tokenizes bytes that follow other text.
    """

    tokens: tuple[bytes, ...]
    without_text: tuple[int, ...]
    encode: Callable[[bytes], list[int]]


def token_bytes(tokenizer: Tokenizer, vocabulary_size: int) -> TokenBytes:
    """Computes the bytes of the first ``vocabulary_size`` ids."""
    before = tokenizer.encode(_CONTEXT, add_special_tokens=False).ids
    start = len(tokenizer.decode(before))
    ids = range(min(vocabulary_size, tokenizer.get_vocab_size()))
    texts = tokenizer.decode_batch([[*before, id_] for id_ in ids])
    unknown = getattr(tokenizer.model, "unk_token", None)
    tokens, without_text = [], []
    for id_, text in zip(ids, texts, strict=True):
        name = tokenizer.id_to_token(id_) or ""
        added = text[start:]
        byte = _BYTE.fullmatch(name)
        if byte is not None:
            tokens.append(bytes.fromhex(byte[1]))
        elif added and REPLACEMENT not in added and name not in (unknown, "<unk>"):
            tokens.append(added.encode())
        else:
            tokens.append(name.encode())
            without_text.append(id_)
    for id_ in range(len(tokens), vocabulary_size):  # logits without a token (padding)
        tokens.append(f"<{id_}>".encode())
        without_text.append(id_)

    def encode(text: bytes) -> list[int]:
        """Runs only the tokenizer's model, which adds no space before the first word."""
        spelled = text.decode("utf-8", errors="ignore").replace(" ", SPACE)
        found = [token.id for token in tokenizer.model.tokenize(spelled)]
        # A model of whole words or characters leaves splitting to the pre-tokenizer.
        return found if unspelled.isdisjoint(found) else longest_tokens(text, by_text) or found

    unspelled = set(without_text)
    by_text = {token: id_ for id_, token in enumerate(tokens) if id_ not in unspelled}
    return TokenBytes(tuple(tokens), tuple(without_text), encode)


def longest_tokens(text: bytes, ids: Mapping[bytes, int]) -> list[int]:
    """Splits ``text`` into tokens, each the longest that matches.

    ``ids``: by the bytes of each token.

    Returns:
        The ids; none if a part of ``text`` matches no token.
    """
    longest = max(map(len, ids), default=0)
    found, start = [], 0
    while start < len(text):
        stop = min(start + longest, len(text))
        while stop > start and text[start:stop] not in ids:
            stop -= 1
        if stop == start:
            return []
        found.append(ids[text[start:stop]])
        start = stop
    return found


def bytes_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    """The bytes that each id adds after other text; for special tokens, their names."""
    before = tokenizer.encode(_CONTEXT, add_special_tokens=False).ids
    start = len(tokenizer.decode(before, skip_special_tokens=False))
    texts = tokenizer.decode_batch([[*before, id_] for id_ in ids], skip_special_tokens=False)
    return [
        added.encode()
        if (added := text[start:]) and REPLACEMENT not in added
        else _spelled_bytes(tokenizer.id_to_token(id_) or "")
        for id_, text in zip(ids, texts, strict=True)
    ]


def without_incomplete_character(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> str:
    """``text``, the text of ``ids``, up to an incomplete last character. No id is special."""
    if not text.endswith(REPLACEMENT):
        return text
    num_incomplete = num_incomplete_tokens(bytes_of(tokenizer, ids[-2 * MAX_CHARACTER_BYTES :]))
    if num_incomplete == 0:
        return text
    before: str = tokenizer.decode(ids[: len(ids) - num_incomplete])
    if not text.startswith(before):  # byte fallback decodes neighbouring bytes together
        return before
    return before + text[len(before) :].rstrip(REPLACEMENT)


def _spelled_bytes(name: str) -> bytes:
    """The bytes of a token whose text is incomplete: ``<0x0A>``, or byte-level BPE."""
    byte = _BYTE.fullmatch(name)
    if byte is not None:
        return bytes.fromhex(byte[1])
    if all(char in _BYTE_LEVEL for char in name):
        return bytes(_BYTE_LEVEL[char] for char in name)
    return name.encode()


def _byte_level() -> dict[str, int]:
    """Maps the characters of byte-level BPE to their bytes (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level()


def drops_first_space(tokenizer: Tokenizer) -> bool:
    """Whether decoding drops the space before the first word.

    True for tokenizers that add a space before every word, as SentencePiece does.
    """
    before = tokenizer.encode(_CONTEXT, add_special_tokens=False).ids
    start = len(tokenizer.decode(before))
    for token, id_ in tokenizer.get_vocab().items():
        if token.startswith(SPACE) and token.strip(SPACE):
            alone = tokenizer.decode([id_])
            return tokenizer.decode([*before, id_])[start:] == f" {alone}"
    return False
