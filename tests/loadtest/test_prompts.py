"""Prompts are real words in the wanted lengths; arrival times are a Poisson process."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import poisson
from loadtest.prompts import LengthRange, Prompts, read_lines


def test_our_own_lines_are_many_and_of_mixed_lengths() -> None:
    lines = read_lines(None)
    lengths = [len(line.split()) for line in lines]
    assert len(set(lines)) == len(lines) >= 60
    assert min(lengths) <= 3
    assert max(lengths) >= 50


@given(st.integers(0, 2**32), st.integers(0, 10**6))
def test_a_prompt_depends_on_seed_and_number_alone(seed: int, index: int) -> None:
    lines = read_lines(None)
    words = LengthRange(4, 90)
    text = Prompts(lines, words, seed).text(index)
    assert text == Prompts(lines, words, seed).text(index)
    assert 4 <= len(text.split()) <= 90


def test_lengths_are_spread_over_the_range() -> None:
    prompts = Prompts(read_lines(None), LengthRange(10, 30), seed=1)
    lengths = {len(prompts.text(index).split()) for index in range(500)}
    assert lengths == set(range(10, 31))


def test_prompts_rarely_share_a_prefix() -> None:
    prompts = Prompts(read_lines(None), LengthRange(20, 20), seed=1)
    prefixes = {" ".join(prompts.text(index).split()[:4]) for index in range(200)}
    assert len(prefixes) > 150


def test_without_lengths_lines_are_sent_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one two\n\n  three\n", encoding="utf-8")
    prompts = Prompts(read_lines(path), None, seed=0)
    assert {prompts.text(index) for index in range(50)} == {"one two", "three"}


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(" \n", encoding="utf-8")
    with pytest.raises(ValueError, match="no text"):
        read_lines(path)


def test_length_ranges() -> None:
    assert LengthRange.parse("8-128") == LengthRange(8, 128)
    assert LengthRange.parse("32") == LengthRange(32, 32)


@pytest.mark.parametrize("text", ["", "8-", "-8", "0-4", "9-3", "a-b", "1.5-2", "1-2-3"])
def test_other_length_ranges_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="lengths"):
        LengthRange.parse(text)


def test_arrivals_are_seeded_and_inside_the_duration() -> None:
    times = list(poisson(50, 20, seed=3))
    assert times == list(poisson(50, 20, seed=3))
    assert times != list(poisson(50, 20, seed=4))
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 20


def test_arrivals_have_exponential_gaps_at_the_rate() -> None:
    gaps = np.diff(list(poisson(100, 200, seed=0)))
    # 20,000 gaps: the means of both are within 4 standard errors of their expectation.
    assert abs(gaps.mean() * 100 - 1) < 4 / np.sqrt(len(gaps))
    assert abs(gaps.std() * 100 - 1) < 4 * np.sqrt(2 / len(gaps))
