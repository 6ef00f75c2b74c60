"""Unit tests of entity grouping and of splitting texts into windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from server.text.entities import Aggregation, Entity, LabelledToken, find_entities
from server.text.windows import (
    LengthLimit,
    LongInput,
    TokenizedText,
    TooLongError,
    WindowBudget,
    best_windows,
    tokenize_windows,
)
from tests.heads import tokenizer_folder

BIOES = ("O", "B-X", "I-X", "E-X", "S-X", "S-Y")


def labelled_token(
    label: int, position: int, labels: tuple[str, ...], *, begins: bool = True
) -> LabelledToken:
    scores = np.full(len(labels), 0.1 / len(labels), np.float32)
    scores[label] = 0.9
    return LabelledToken(scores, 2 * position, 2 * position + 1, begins)


def entities_of(names: str, labels: tuple[str, ...]) -> list[tuple[str, int, int]]:
    tokens = [labelled_token(labels.index(name), i, labels) for i, name in enumerate(names.split())]
    entities = find_entities(tokens, labels, Aggregation.SIMPLE)
    return [(entity.label, entity.start, entity.end) for entity in entities]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("B-X I-X E-X S-X", [("X", 0, 5), ("X", 6, 7)]),
        ("S-X S-X", [("X", 0, 1), ("X", 2, 3)]),
        ("B-X E-X I-X", [("X", 0, 3), ("X", 4, 5)]),
        ("S-X S-Y O S-Y", [("X", 0, 1), ("Y", 2, 3), ("Y", 6, 7)]),
        ("I-X O I-X I-X", [("X", 0, 1), ("X", 4, 7)]),
    ],
)
def test_decodes_bioes_labels(names: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities_of(names, BIOES) == expected


def test_label_without_prefix_is_a_whole_entity() -> None:
    labels = ("O", "S-Bahn", "U-Bahn", "bus")
    assert entities_of("S-Bahn S-Bahn U-Bahn bus", labels) == [
        ("S-Bahn", 0, 3),
        ("U-Bahn", 4, 5),
        ("bus", 6, 7),
    ]


def test_assigns_one_label_per_word() -> None:
    labels = ("O", "B-X", "B-Y")
    scores = [[0.1, 0.6, 0.3], [0.05, 0.05, 0.9], [0.2, 0.5, 0.3]]
    tokens = [
        LabelledToken(np.array(row, np.float32), i, i + 1, begins_word=i == 0)
        for i, row in enumerate(scores)
    ]
    means = np.array(scores).mean(0)
    expected = {
        Aggregation.FIRST: ("X", 0.6),
        Aggregation.MAX: ("Y", 0.9),
        Aggregation.AVERAGE: ("Y", means[2]),
    }
    for aggregation, (label, score) in expected.items():
        (entity,) = find_entities(tokens, labels, aggregation)
        assert entity == Entity(label, pytest.approx(score), 0, 3)  # type: ignore[arg-type]


LIBRARY = HuggingFaceTokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
LIBRARY.no_padding()
LIBRARY.no_truncation()


def tokenized(text: str, pair: str | None, limit: LengthLimit) -> TokenizedText:
    whole = LIBRARY.encode(text) if pair is None else LIBRARY.encode(text, pair)
    budget = WindowBudget(1000, 100_000)
    return tokenize_windows(whole, limit, budget, is_pair=pair is not None, with_offsets=True)


@given(
    st.integers(1, 60),
    st.integers(0, 12),
    st.integers(5, 24),
    st.integers(0, 10),
    st.sampled_from(LongInput),
)
def test_windows_cover_every_token_or_count_it_as_truncated(
    num_tokens: int, num_first: int, room: int, stride: int, long_input: LongInput
) -> None:
    text = " ".join(["a", "b", "c", "d", "e", "f", "g"][i % 7] for i in range(num_tokens))
    first = " ".join(["x"] * num_first) or None
    limit = LengthLimit(long_input, room, room, stride)
    try:
        text_windows = (
            tokenized(text, None, limit) if first is None else tokenized(first, text, limit)
        )
    except TooLongError:
        special = 2 if first is None else 3 + num_first
        fits = num_tokens + special <= room
        assert not fits
        assert long_input in (LongInput.ERROR, LongInput.WINDOWS) or room - 3 < 2
        if long_input == LongInput.WINDOWS:
            assert room - special <= stride
        return
    assert all(len(window.token_ids) <= room for window in text_windows.windows)
    positions = best_windows(text_windows)
    begin = text_windows.windows[0].first_token
    ids = LIBRARY.encode(text, add_special_tokens=False).ids
    for token, (number, index) in enumerate(positions, begin):
        assert text_windows.windows[number].token_ids[index] == ids[token]
        start, end = text_windows.offsets[token]
        assert text[start:end] == LIBRARY.id_to_token(ids[token])
    cut_first = max(0, num_first - (len(text_windows.windows[0].token_ids) - len(positions) - 3))
    if first is None or long_input == LongInput.WINDOWS:
        assert len(positions) + text_windows.num_truncated_tokens == num_tokens
    elif len(text_windows.windows) == 1:
        assert len(positions) + text_windows.num_truncated_tokens == num_tokens + cut_first
    if long_input == LongInput.WINDOWS:
        assert text_windows.num_truncated_tokens == 0
