"""Where the tokens of a generated text stand in it."""

from collections.abc import Sequence

from server.text.tokenizer import Tokenizer

Span = tuple[int, int]  # characters, the end excluded


def target_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span | None]:
    """The characters of ``tokenizer.decode(ids)`` that each token adds, without a space before.

    None for a token that adds none: a special one, or the first part of a character.
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
