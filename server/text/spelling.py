"""The bytes that each token adds to a text, found with the tokenizer's own decoder."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"  # incomplete UTF-8 decodes to it
SPACE = "▁"  # SentencePiece writes it for a space
_CONTEXT = "a"  # some text for a token to follow


@dataclass(frozen=True, slots=True)
class Spelling:
    """The vocabulary as bytes.

    ``tokens[id]``: the bytes that ``id`` adds after other text. ``unwritable``: ids that add no
    text of their own (special tokens, the unknown token, incomplete characters); their entry in
    ``tokens`` is their name. ``encode``: tokenizes bytes that follow other text.
    """

    tokens: tuple[bytes, ...]
    unwritable: tuple[int, ...]
    encode: Callable[[bytes], list[int]]


def spelling(tokenizer: Tokenizer, vocabulary_size: int) -> Spelling:
    """The spelling of the first ``vocabulary_size`` ids."""
    before = tokenizer.encode(_CONTEXT, add_special_tokens=False).ids
    start = len(tokenizer.decode(before))
    ids = range(min(vocabulary_size, tokenizer.get_vocab_size()))
    texts = tokenizer.decode_batch([[*before, id_] for id_ in ids])
    unknown = getattr(tokenizer.model, "unk_token", None)
    tokens, unwritable = [], []
    for id_, text in zip(ids, texts, strict=True):
        name = tokenizer.id_to_token(id_) or ""
        added = text[start:]
        byte = _BYTE.fullmatch(name)
        if byte is not None:
            tokens.append(bytes.fromhex(byte[1]))
        elif added and _REPLACEMENT not in added and name not in (unknown, "<unk>"):
            tokens.append(added.encode())
        else:
            tokens.append(name.encode())
            unwritable.append(id_)
    for id_ in range(len(tokens), vocabulary_size):  # logits without a token (padding)
        tokens.append(f"<{id_}>".encode())
        unwritable.append(id_)

    def encode(text: bytes) -> list[int]:
        """Runs the tokenizer's model only, which adds no space before the first word."""
        spelled = text.decode("utf-8", errors="ignore").replace(" ", SPACE)
        return [token.id for token in tokenizer.model.tokenize(spelled)]

    return Spelling(tuple(tokens), tuple(unwritable), encode)


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
