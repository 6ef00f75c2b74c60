"""Segments by the timestamps of a window's tokens."""

import pytest

from model.bundle import TranscriptionTokens
from server.service.segments import TokenSegment, compression_ratio, divide

FIRST = 100
TOKENS = TranscriptionTokens(first_timestamp=FIRST, num_timestamps=101, no_timestamps=99)


def at(seconds: float) -> int:
    """The timestamp token of ``seconds``."""
    return FIRST + round(50 * seconds)


@pytest.mark.parametrize(
    ("token_ids", "segments", "rest"),
    [
        ([], [], None),
        ([at(0)], [], None),
        ([at(0), 1, 2, at(1)], [((1, 2), 0.0, 1.0)], None),
        ([at(0.2), 1, at(1), at(1.2), 2, at(1.4)], [((1,), 0.2, 1.0), ((2,), 1.2, 1.4)], None),
        ([at(0), 1, at(1), at(1), 2], [((1,), 0.0, 1.0), ((2,), 1.0, 1.8)], None),
        ([at(0), 1, at(1), at(1.2)], [((1,), 0.0, 1.0)], 1.2),
        ([at(0), 1, at(2)], [((1,), 0.0, 1.8)], None),  # not after the end of the recording
        ([1, at(1)], [((1,), 0.0, 1.0)], None),
    ],
)
def test_timestamps_divide_a_window(
    token_ids: list[int], segments: list[TokenSegment], rest: float | None
) -> None:
    divided = divide(token_ids, TOKENS, 1.8)
    assert [segment.token_ids for segment in divided.segments] == [ids for ids, *_ in segments]
    times = [time for segment in divided.segments for time in segment[1:]]
    assert times == pytest.approx([time for segment in segments for time in segment[1:]])
    assert divided.rest_seconds == rest


def test_a_cut_output_goes_on_after_its_last_whole_segment() -> None:
    divided = divide([at(0), 1, at(1), at(1.2), 2, 3], TOKENS, 1.8, is_cut=True)
    assert divided.segments == [((1,), 0.0, 1.0)]
    assert divided.rest_seconds == 1.0
    whole = divide([at(0.4), 1, 2], TOKENS, 1.8, is_cut=True)
    assert whole.segments == [((1, 2), 0.4, 1.8)]
    assert whole.rest_seconds is None


def test_compression_ratio_tells_of_repetition() -> None:
    assert compression_ratio("") == 0
    assert compression_ratio("Nobody knew why the lights went out in the village.") < 1.2
    assert compression_ratio("and then " * 30) > 2.4
