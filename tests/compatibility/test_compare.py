"""The comparison reports significant differences only."""

from typing import Any

import pytest

from tests.compatibility.compare import differences, report


@pytest.mark.parametrize(
    ("recorded", "actual"),
    [
        ({"logprob": -1.0}, {"logprob": -1.00001}),
        ({"score": 0.0}, {"score": 1e-7}),
        ({"values": [1.0, 0.0]}, {"values": [1.00001, 0.00001]}),
        ({"message": "x: 3.0 is not in 0 … 2"}, {"message": "x: must be in [0, 2], got 3"}),
        ({"message": "no model 'a' here"}, {"message": 'there is no model "a"'}),
        ({"message": "the model's own"}, {"message": "anything"}),
    ],
)
def test_accepts_insignificant_differences(
    recorded: dict[str, Any], actual: dict[str, Any]
) -> None:
    assert not list(differences(recorded, actual))


@pytest.mark.parametrize(
    ("recorded", "actual"),
    [
        ({"logprob": -1.0}, {"logprob": -1.001}),
        ({"text": "a"}, {"text": "b"}),
        ({"text": "a"}, {}),
        ({}, {"text": "a"}),
        ({"token_ids": ["1"]}, {"token_ids": ["1", "2"]}),
        ({"token_ids": ["1"]}, {"token_ids": [1]}),
        ({"echo": True}, {"echo": 1}),
        ({"values": [1.0, 0.0]}, {"values": [1.0, 0.1]}),
        ({"values": [1.0, 0.0]}, {"values": [2.0, 0.0]}),
        ({"values": [1.0, 0.0]}, {"values": [1.0]}),
        ({"values": [1.0, 0.0]}, {"values": [float("nan"), 0.0]}),
        ({"message": "3 is not in 0 … 2"}, {"message": "3 is too much"}),
        ({"message": "no model 'a' here"}, {"message": "there is no such model"}),
        ({"message": "is empty"}, {"message": ""}),
    ],
)
def test_reports_significant_differences(recorded: dict[str, Any], actual: dict[str, Any]) -> None:
    assert len(list(differences(recorded, actual))) == 1


def test_report_shows_the_first_lines_and_counts_the_rest() -> None:
    lines = report(differences(dict.fromkeys("abcd", 1), dict.fromkeys("abcd", 2)), max_lines=2)
    assert lines.splitlines() == [".a: 2, recorded: 1", ".b: 2, recorded: 1", "… and 2 more"]
