"""The file format of lexical shortlists, and the candidates that they give."""

import dataclasses
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.shortlist import MAGIC, Shortlist

VOCABULARY_SIZE = 40
TOKENS = st.integers(0, VOCABULARY_SIZE - 1)
LISTS = st.lists(st.lists(TOKENS, max_size=6), max_size=8)
SHORTLIST = Shortlist.of_lists([[9, 3], [], [5]], [1, 0], VOCABULARY_SIZE)


@given(
    lists=LISTS,
    frequent=st.lists(TOKENS, max_size=4),
    source=st.lists(st.integers(0, 12), max_size=9),
    others=st.lists(TOKENS, max_size=3),
)
def test_candidates_are_those_of_the_source_frequent_and_given_tokens(
    lists: list[list[int]], frequent: list[int], source: list[int], others: list[int]
) -> None:
    made = Shortlist.of_lists(lists, frequent, VOCABULARY_SIZE)
    read = Shortlist.from_bytes(made.to_bytes(), VOCABULARY_SIZE)
    expected = {*frequent, *others, *(i for s in source for i in [*lists, *[[]] * 13][s])}
    for shortlist in (made, read):
        assert shortlist.candidates(source, others).tolist() == sorted(expected)


def test_excluded_tokens_are_never_candidates() -> None:
    shortlist = dataclasses.replace(SHORTLIST, excluded=(0, 9))
    assert shortlist.candidates([0], [9, 7]).tolist() == [1, 3, 7]


def words(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "header"),
        (SHORTLIST.to_bytes()[:-1], "do not fit"),
        (SHORTLIST.to_bytes() + b"\0", "do not fit"),
        (b"X" + SHORTLIST.to_bytes()[1:], "not a shortlist"),
        (MAGIC + struct.pack("<3I", 2**32 - 1, 2**32 - 1, 2**32 - 1), "do not fit"),
        (MAGIC + words(0, 2, 1) + words(0, 2, 1) + words(5), "ascending"),
        (MAGIC + words(0, 1, 1) + words(1, 1) + words(5), "ascending"),
        (MAGIC + words(0, 1, 1) + words(0, 1) + words(VOCABULARY_SIZE), "vocabulary"),
        (MAGIC + words(1, 0, 0) + words(2**31) + words(0), "vocabulary"),
    ],
)
def test_damaged_files_are_rejected(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shortlist.from_bytes(data, VOCABULARY_SIZE)
