"""Tokenization (whole, truncated, in windows) and detokenization: invariants of both."""

from collections.abc import Iterator
from dataclasses import replace

from server.text.alignment import target_spans
from server.text.characters import REPLACEMENT
from server.text.tokenizer import Tokenizer
from server.text.windows import (
    LengthLimit,
    LongInput,
    TokenizedText,
    TooLongError,
    WindowBudget,
    best_windows,
)
from tests.fuzz.draw import Draw
from tests.fuzz.vocabularies import NAMES, TEXTS, size, tokenizer

SIZE = 192
_MAX_WINDOWS, _MAX_TOKENS = 10_000, 1_000_000


def run(data: bytes) -> None:
    """Input: vocabulary, length limit, text, and a paired text or tokens to decode."""
    draw = Draw(data)
    name = draw.choice(NAMES)
    kind = draw.byte() % 4
    if kind == 0:
        ids = [draw.below(size(name)) for _ in range(min(len(data), 32))]
        _check_decoding(tokenizer(name), ids)
        return
    longest = 2 + draw.byte() % 62
    limit = LengthLimit(
        long_input=draw.choice(tuple(LongInput)),
        max_tokens=longest,
        max_whole_tokens=longest + draw.byte() % 8,
        stride=draw.byte() % 32 if draw.flag() else None,
    )
    first, second = draw.rest_as_texts(2)
    if kind == 1:
        _check_windows(tokenizer(name), first, None, limit)
    elif kind == 2:
        _check_windows(tokenizer(name), first, second, limit)
    else:
        _check_encoding(tokenizer(name), first, second)


def seeds() -> Iterator[bytes]:
    for vocabulary in range(len(NAMES)):
        for kind in range(4):
            for text in TEXTS:
                head = bytes([vocabulary, 0, kind, 9, kind, 0, 2, 1, 3])
                yield head + text.encode() + b"\0" + TEXTS[0].encode()


def _check_encoding(tokenizer: Tokenizer, first: str, second: str) -> None:
    rows = tokenizer.encode([first, second])
    assert tokenizer.encode([first]) == rows[:1], "batch mates change nothing"
    ids, before = tokenizer.encode_after(first, second)
    assert 0 <= before <= len(ids)
    for span in tokenizer.offsets(first):
        assert span is None or 0 <= span[0] < span[1] <= len(first)
    tokenizer.id_of(first[:8])
    _check_decoding(tokenizer, list(rows[0]))


def _byte_fallback() -> Tokenizer:
    """Its decoder changes the text before invalid bytes, which a stream has returned already."""
    return tokenizer("byte_fallback")


def _check_decoding(tokenizer: Tokenizer, ids: list[int]) -> None:
    stream = tokenizer.detokenizer()
    text = "".join(stream.push(id_) for id_ in ids) + stream.finish()
    if tokenizer is not _byte_fallback() or REPLACEMENT not in text:
        assert text == tokenizer.decode(ids), "what was streamed is the text"
    start = len(ids) % 3
    previous = tokenizer.last_with_text(ids[:start])
    continued, together, at_once = (tokenizer.detokenizer(previous) for _ in range(3))
    text = "".join(continued.push(id_) for id_ in ids[start:]) + continued.finish()
    assert together.push_all(ids[start:]) + together.finish() == text
    assert at_once.finish(ids[start:]) == text
    assert len(tokenizer.tokens(ids)) == len(target_spans(tokenizer, ids)) == len(ids)


def _check_without_offsets(
    tokenizer: Tokenizer,
    text: str,
    limit: LengthLimit,
    expected: TokenizedText,
    left: WindowBudget,
) -> None:
    """Checks that a text without offsets has the same windows and takes as much of the budget."""
    budget = WindowBudget(_MAX_WINDOWS, _MAX_TOKENS)
    (found,) = tokenizer.tokenize_windows([text], None, limit, budget, with_offsets=False)
    assert found == replace(expected, offsets=(), word_ids=(), first_offsets=())
    assert budget == left


def _check_windows(tokenizer: Tokenizer, first: str, pair: str | None, limit: LengthLimit) -> None:
    pairs = None if pair is None else [pair]
    text = first if pair is None else pair
    budget = WindowBudget(_MAX_WINDOWS, _MAX_TOKENS)
    try:
        (tokenized,) = tokenizer.tokenize_windows([first], pairs, limit, budget, with_offsets=True)
    except TooLongError:
        return
    if pair is None:
        _check_without_offsets(tokenizer, first, limit, tokenized, budget)
    counted = (_MAX_WINDOWS - budget.num_windows, _MAX_TOKENS - budget.num_tokens)
    assert counted == (len(tokenized.windows), tokenized.num_tokens), "the count is exact"
    longest = max(limit.max_tokens, limit.max_whole_tokens)
    for window in tokenized.windows:
        assert len(window.token_ids) <= longest, "a window is no longer than the limit"
        assert len(window.segment_ids) == len(window.token_ids)
        assert window.text_start + window.num_text_tokens <= len(window.token_ids)
    for start, end in tokenized.offsets:
        assert 0 <= start <= end <= len(text)
    starts = tokenizer.word_starts(text, tokenized)
    assert len(starts) == len(tokenized.offsets)
    first_token = tokenized.windows[0].first_token
    positions = best_windows(tokenized)
    assert len(positions) == len(tokenized.offsets) - first_token, "every token has a position"
    assert tokenized.num_truncated_tokens >= 0
