"""Windows of texts after labels: whole words, which all are in some window."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.bundle import SpanTagging
from server.text.label_prompts import LabelPrompts, PromptedText
from server.text.tokenizer import Tokenizer
from server.text.windows import LengthLimit, LongInput, TooLongError, WindowBudget
from tests import gliner_models
from tests.gliner_models import MARKER, SEPARATOR, prompted

LABELS = ("person", "city")
NUM_AROUND = 7  # the start, two markers, two labels, the separator, the end
# The tokenizer drops the last one and splits the first ones.
PIECES = ("unaffable-ness", "x1y2z3", "a", "the", "cat", ",", "\u200b")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    gliner_models.tokenizer().backend_tokenizer.save(str(path))
    return Tokenizer(path)


def read(tokenizer: Tokenizer, text: str, limit: LengthLimit, max_words: int = 6) -> PromptedText:
    ids: Any = gliner_models.tokenizer().convert_tokens_to_ids([MARKER, SEPARATOR])
    spec = SpanTagging(marker=ids[0], separator=ids[1], max_width=3, max_words=max_words)
    (found,) = LabelPrompts(tokenizer, spec, LABELS).tokenize(
        [text], limit, WindowBudget(1000, 100_000)
    )
    return found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join),
    st.integers(1, 20),
    st.sampled_from(LongInput),
    st.none() | st.integers(0, 20),
    st.integers(1, 8),
)
def test_windows_have_whole_words(
    tokenizer: Tokenizer,
    text: str,
    room: int,
    long_input: LongInput,
    stride: int | None,
    max_words: int,
) -> None:
    size = NUM_AROUND + room
    row = prompted(text, LABELS)
    is_long = len(row.ids) > size or len(row.words) > max_words
    try:
        found = read(tokenizer, text, LengthLimit(long_input, size, size, stride), max_words)
    except TooLongError:
        assert is_long
        assert long_input == LongInput.ERROR or (stride is not None and stride >= room)
        return
    assert found.tokenized.offsets == tuple(row.spans)
    assert found.label_positions == tuple(row.labels)
    ends = [*row.words[1:], len(row.ids) - 1][: len(row.words)]
    lengths = [end - start for start, end in zip(row.words, ends, strict=True)]
    for window, words, positions in zip(
        found.tokenized.windows, found.words, found.word_positions, strict=True
    ):
        assert len(window.token_ids) <= size
        assert len(words) == len(positions) <= max_words
        for word, position in zip(words, positions, strict=True):
            kept = min(lengths[word], room)
            own = row.ids[row.words[word] : row.words[word] + kept]
            assert list(window.token_ids[position : position + kept]) == own
        assert list(window.token_ids[: NUM_AROUND - 1]) == row.ids[: NUM_AROUND - 1]
        assert window.token_ids[-1] == row.ids[-1]
    _check_order(found, len(row.words), long_input)


def _check_order(found: PromptedText, num_words: int, long_input: LongInput) -> None:
    if long_input in (LongInput.WINDOWS, LongInput.ERROR):
        assert found.words[0].start == 0
        assert found.words[-1].stop == num_words
    for one, other in zip(found.words, found.words[1:], strict=False):
        assert one.start < other.start <= one.stop < other.stop
    if long_input == LongInput.TRUNCATE_LEFT:
        assert found.words[0].stop == num_words


def test_windows_full_of_words_overlap_by_a_quarter(tokenizer: Tokenizer) -> None:
    limit = LengthLimit(LongInput.WINDOWS, 10_000, 10_000)
    found = read(tokenizer, "cat " * 800, limit, max_words=100)
    assert found.words[:2] == (range(100), range(75, 175))
    assert len(found.words) == 11


def test_labels_alone_may_be_too_long(tokenizer: Tokenizer) -> None:
    with pytest.raises(TooLongError, match="no room for the text after the labels"):
        read(tokenizer, "cat", LengthLimit(LongInput.WINDOWS, NUM_AROUND, NUM_AROUND))
