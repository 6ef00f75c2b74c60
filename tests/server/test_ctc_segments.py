"""Greedy decoding with CTC: runs of tokens, words and phrases."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc import TokenRun, token_runs
from server.service.ctc_segments import WordSpan, phrases, word_spans

BLANK, DELIMITER = 0, 1


@given(st.lists(st.integers(0, 3), max_size=30))
def test_runs_are_groups_of_equal_frames(best: list[int]) -> None:
    runs = token_runs(np.array(best, np.int64), BLANK)
    assert [run.token for run in runs] == [id_ for id_, _ in groupby(best) if id_ != BLANK]
    assert all(best[run.start : run.stop] == [run.token] * (run.stop - run.start) for run in runs)
    assert sum(run.stop - run.start for run in runs) == len(best) - best.count(BLANK)


def test_a_blank_divides_equal_letters() -> None:
    runs = token_runs(np.array([5, 5, 0, 5, 0, 0]), BLANK)
    assert runs == [TokenRun(5, 0, 2), TokenRun(5, 3, 4)]


@given(st.lists(st.integers(1, 3), max_size=20), st.integers(1, 5))
def test_words_and_phrases_cover_all_letters(tokens: list[int], pause: int) -> None:
    runs = [TokenRun(token, 3 * index, 3 * index + 1) for index, token in enumerate(tokens)]
    words = word_spans(runs, DELIMITER)
    letters = [index for index, token in enumerate(tokens) if token != DELIMITER]
    assert [index for word in words for index in range(*word)] == letters
    found = phrases(runs, DELIMITER, pause)
    assert [word for phrase in found for word in phrase.words] == words
    # Texts join without gaps: from the first word to the end of the last one.
    bounds = [bound for phrase in found for bound in phrase.text]
    assert bounds[1:-1:2] == bounds[2::2]
    assert [bounds[0], bounds[-1]] == [words[0].start, words[-1].stop] if words else not bounds


@pytest.mark.parametrize(("pause", "number"), [(6, 1), (5, 2)])
def test_a_pause_divides_phrases(pause: int, number: int) -> None:
    runs = [TokenRun(2, 0, 2), TokenRun(DELIMITER, 3, 4), TokenRun(3, 7, 9)]
    found = phrases(runs, DELIMITER, pause)
    assert len(found) == number
    assert found[-1].text == (WordSpan(1, 3) if number == 2 else WordSpan(0, 3))


def test_without_a_delimiter_all_tokens_are_a_word() -> None:
    runs = [TokenRun(2, 0, 1), TokenRun(1, 50, 51)]
    assert word_spans(runs, None) == [WordSpan(0, 2)]
