"""Texts as a model with a vector for each token reads them: markers, fillers, offsets, budgets."""

from dataclasses import replace

import msgspec
import pytest

from model.bundle import MultiVector
from server.text.late_interaction import LateInteraction
from server.text.windows import TokenizedText, TooLongError, Window, WindowBudget

CLS, SEP, QUERY, DOCUMENT, MASK, POINT = 101, 102, 1, 2, 103, 1012
SPEC = MultiVector(
    query_marker=QUERY,
    document_marker=DOCUMENT,
    query_length=8,
    document_length=10,
    filler=MASK,
    skipped=(POINT,),
)
TEXT = TokenizedText(
    windows=(Window((CLS, 7, POINT, SEP), (0, 0, 0, 0), 1, 0, 2),),
    offsets=((0, 1), (1, 2)),
    word_ids=(0, 1),
    num_truncated_tokens=0,
)


def budget(num_tokens: int = 100) -> WindowBudget:
    return WindowBudget(0, num_tokens)


def test_a_query_is_marked_and_filled() -> None:
    reader = LateInteraction(SPEC, is_query=True)
    read = reader.read(TEXT, budget())
    (window,) = read.windows
    assert window.token_ids == (CLS, QUERY, 7, POINT, SEP, MASK, MASK, MASK)
    assert (window.num_attended, len(window.segment_ids), read.num_tokens) == (5, 8, 8)
    assert (window.text_start, window.num_text_tokens) == (2, 2)
    assert list(reader.kept(window.token_ids)) == list(range(8))
    attended = msgspec.structs.replace(SPEC, attends_to_filler=True)
    (window,) = LateInteraction(attended, is_query=True).read(TEXT, budget()).windows
    assert window.num_attended == 8


def test_a_document_is_marked_and_skips_tokens() -> None:
    reader = LateInteraction(SPEC, is_query=False)
    (window,) = reader.read(TEXT, budget()).windows
    assert window.token_ids == (CLS, DOCUMENT, 7, POINT, SEP)
    assert (window.num_attended, window.text_start) == (5, 2)
    assert list(reader.kept(window.token_ids)) == [0, 1, 2, 4]


def test_the_marker_may_split_a_text_without_special_tokens() -> None:
    bare = replace(TEXT, windows=(Window((7, 8), (0, 0), 0, 0, 2),))
    read = LateInteraction(SPEC, is_query=False).read(bare, budget())
    (window,) = read.windows
    assert window.token_ids == (7, DOCUMENT, 8)
    assert (window.text_start, window.num_text_tokens) == (0, 3)
    assert read.offsets == ((0, 1), (0, 0), (1, 2))
    assert read.word_ids == (0, None, 1)


def test_special_tokens_alone_are_marked() -> None:
    empty = TokenizedText((Window((CLS, SEP), (0, 0), 0, 0, 0),), (), (), 0)
    (window,) = LateInteraction(SPEC, is_query=False).read(empty, budget()).windows
    assert window.token_ids == (CLS, DOCUMENT, SEP)
    assert (window.text_start, window.num_text_tokens) == (0, 0)


def test_a_text_without_tokens_stays_empty() -> None:
    empty = TokenizedText((Window((), (), 0, 0, 0),), (), (), 0)
    assert LateInteraction(SPEC, is_query=True).read(empty, budget()) is empty


def test_added_tokens_count_against_the_budget() -> None:
    reader = LateInteraction(SPEC, is_query=True)
    left = budget(8)
    assert len(reader.read_all([TEXT, TEXT], left)) == 2
    assert left.num_tokens == 0
    with pytest.raises(TooLongError) as caught:
        reader.read_all([TEXT, TEXT], budget(7))
    assert caught.value.index == 1
