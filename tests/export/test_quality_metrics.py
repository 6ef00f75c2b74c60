"""Metrics of texts, by hand."""

import pytest

from export.quality.metrics import character_error_rate, edit_distance


@pytest.mark.parametrize(
    ("output", "target", "distance"),
    [("", "", 0), ("", "A B", 2), ("A B", "", 2), ("A B C", "A C", 1), ("B A", "A B", 2)],
)
def test_edit_distance(output: str, target: str, distance: int) -> None:
    assert edit_distance(output.split(), target.split()) == distance


def test_character_error_rate_is_over_all_characters() -> None:
    assert character_error_rate(["ab", "x", ""], ["abc", "x", "yz"]) == 3 / 6
    assert character_error_rate(["", "a"], ["", ""]) == 1.0
