"""Edits of words: the characters that each changes, and how rounds of them add up."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.bundle import Edit, EditKind
from server.text.edits import Revision, TextEdit, apply, effective, text_edit, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 1,000.5 km!?", ["It's", "1,000.5", "km", "!?"]),
        ("He’d co-own “it”...", ["He’d", "co", "-", "own", "“", "it", "”", "..."]),
        ("snake_case, in 2019,", ["snake_case", ",", "in", "2019", ","]),
        ("naïve 東京 🙂", ["naïve", "東京", "🙂"]),
        (" \n", []),
    ],
)
def test_words_and_marks(text: str, words: list[str]) -> None:
    assert [text[word.start : word.end] for word in words_of(text)] == words


@pytest.mark.parametrize(
    ("text", "index", "edit", "expected"),
    [
        ("a very big", 1, Edit(kind=EditKind.DELETE), "a big"),
        ("very big", 0, Edit(kind=EditKind.DELETE), "big"),
        ("it is so , yes", 2, Edit(kind=EditKind.DELETE), "it is , yes"),
        ("(so big)", 1, Edit(kind=EditKind.DELETE), "(big)"),
        ("have a  dog", 0, Edit(kind=EditKind.REPLACE, text="has"), "has a  dog"),
        ("However it", 0, Edit(kind=EditKind.APPEND, text=","), "However, it"),
        ("I am.", 1, Edit(kind=EditKind.APPEND, text="there"), "I am there."),
        ("on mONDAY", 1, Edit(kind=EditKind.CAPITALIZE), "on Monday"),
        ("NOT so", 0, Edit(kind=EditKind.LOWERCASE), "not so"),
        ("the usa", 1, Edit(kind=EditKind.UPPERCASE), "the USA"),
        ("two dog", 1, Edit(kind=EditKind.PLURAL), "two dogs"),
        ("one dogs", 1, Edit(kind=EditKind.SINGULAR), "one dog"),
        ("ice \n cream", 0, Edit(kind=EditKind.MERGE, text="-"), "ice-cream"),
        ("every one", 0, Edit(kind=EditKind.MERGE), "everyone"),
        ("ice", 0, Edit(kind=EditKind.MERGE, text="-"), "ice"),
        ("ice-cream", 0, Edit(kind=EditKind.MERGE, text="-"), "ice-cream"),
    ],
)
def test_each_kind_of_edit(text: str, index: int, edit: Edit, expected: str) -> None:
    found = text_edit(text, words_of(text), index, edit, 0.5)
    assert apply(text, effective(text, [found])) == expected


def test_edits_without_effect_are_left_out() -> None:
    text = "Monday"
    edit = text_edit(text, words_of(text), 0, Edit(kind=EditKind.CAPITALIZE), 0.5)
    assert effective(text, [edit]) == []


def test_deleting_all_words_leaves_no_overlap() -> None:
    text = "a b c"
    words = words_of(text)
    edits = [text_edit(text, words, i, Edit(kind=EditKind.DELETE), 0.5) for i in range(3)]
    found = effective(text, edits)
    assert all(one.end <= other.start for one, other in pairwise(found))
    assert apply(text, found) == ""


def test_a_later_edit_of_the_same_word_joins_the_earlier_one() -> None:
    revision = Revision("he dont like it, no")
    revision.apply([TextEdit(3, 7, "don't", 0.9), TextEdit(16, 19, " yes", 0.7)])
    revision.apply([TextEdit(3, 8, "doesn't", 0.8)])
    assert revision.text == "he doesn't like it, yes"
    assert revision.edits == (
        TextEdit(3, 7, "doesn't", 0.8),
        TextEdit(16, 19, " yes", 0.7),
    )


def test_an_edit_that_is_undone_disappears() -> None:
    revision = Revision("to big")
    revision.apply([TextEdit(0, 2, "too", 0.9)])
    revision.apply([TextEdit(0, 3, "to", 0.8)])
    assert revision.edits == ()


TEXTS = st.text(alphabet="ab ,é🙂", max_size=12)


@given(TEXTS, st.data())
def test_the_edits_of_all_rounds_lead_from_the_source_to_the_text(
    source: str, data: st.DataObject
) -> None:
    revision = Revision(source)
    for _ in range(data.draw(st.integers(1, 4))):
        size = len(revision.text)
        places = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
        spans = zip(places[::2], places[1::2], strict=False)
        edits = [TextEdit(start, end, data.draw(TEXTS), 0.5) for start, end in spans]
        revision.apply(effective(revision.text, edits))
        assert apply(source, revision.edits) == revision.text
        assert all(one.end < other.start for one, other in pairwise(revision.edits))
        assert all(source[e.start : e.end] != e.replacement for e in revision.edits)
