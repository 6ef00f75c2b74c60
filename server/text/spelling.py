"""What each token adds to a text, in bytes: read off the tokenizer's own decoder."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"  # what a part of a character decodes to
SPACE = "▁"  # SentencePiece's
_BEFORE = "a"  # any text that a token may follow


@dataclass(frozen=True, slots=True)
class Spelling:
    """``tokens[id]`` is what ``id`` adds after other text.

    ``unwritable``: the tokens that no text is made of, with their names for bytes: special ones,
    the unknown one, parts of characters that the vocabulary does not name. ``encode`` finds the
    tokens that a text in the middle of another has.
    """

    tokens: tuple[bytes, ...]
    unwritable: tuple[int, ...]
    encode: Callable[[bytes], list[int]]


def spelling(tokenizer: Tokenizer, vocabulary_size: int) -> Spelling:
    """Of the first ``vocabulary_size`` ids."""
    before = tokenizer.encode(_BEFORE, add_special_tokens=False).ids
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
    for id_ in range(len(tokens), vocabulary_size):  # rows of the logits that no token has
        tokens.append(f"<{id_}>".encode())
        unwritable.append(id_)

    def encode(text: bytes) -> list[int]:
        """By the model alone: what comes before a text's first word is not added."""
        spelled = text.decode("utf-8", errors="ignore").replace(" ", SPACE)
        return [token.id for token in tokenizer.model.tokenize(spelled)]

    return Spelling(tuple(tokens), tuple(unwritable), encode)


def drops_first_space(tokenizer: Tokenizer) -> bool:
    """Whether a space before a text's first word is the tokenizer's and not the text's.

    So it is where SentencePiece puts one before every word.
    """
    before = tokenizer.encode(_BEFORE, add_special_tokens=False).ids
    start = len(tokenizer.decode(before))
    for token, id_ in tokenizer.get_vocab().items():
        if token.startswith(SPACE) and token.strip(SPACE):
            alone = tokenizer.decode([id_])
            return tokenizer.decode([*before, id_])[start:] == f" {alone}"
    return False
