"""Finds the character spans of generated tokens in the detokenized text."""

from collections.abc import Sequence

from server.text.tokenizer import Tokenizer

Span = tuple[int, int]  # start and end in characters; end excluded


def target_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span | None]:
    """The span that each token adds to ``tokenizer.decode(ids)``, without leading spaces.

    The span is ``None`` for a token that adds no text, such as a special token or the first bytes
    of a character.
    """
    whole = tokenizer.decode(ids)
    spans: list[Span | None] = []
    before = 0
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        after = len(text) if whole.startswith(text) else before
        piece = whole[before:after]
        start = before + len(piece) - len(piece.lstrip())
        spans.append((start, after) if start < after else None)
        before = after
    return spans
