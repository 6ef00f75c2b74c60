"""Windows of a recording: they cover it, and end where nobody speaks."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from model.audio import Samples
from model.audio_config import AudioSpec
from server.service.audio_windows import AudioWindow, padded_window, split_windows

RATE = 16_000
SPEC = AudioSpec(sample_rate=RATE, num_samples=30 * RATE, num_tokens=1500)
RNG = np.random.default_rng(0)


def noise(seconds: float) -> Samples:
    return RNG.integers(-9000, 9000, round(seconds * RATE)).astype(np.int16)


def silenced(samples: Samples, *pauses: tuple[float, float]) -> Samples:
    """``samples``, quiet from the first to the second of each pair of seconds."""
    for start, stop in pauses:
        samples[round(start * RATE) : round(stop * RATE)] //= 100
    return samples


@given(
    num_samples=st.integers(1, 5000),
    spec=st.builds(
        AudioSpec,
        sample_rate=st.integers(1, 2000),
        num_samples=st.integers(1, 1000),
        num_tokens=st.just(1),
    ),
    seed=st.integers(0, 9),
)
def test_windows_cover_the_recording(num_samples: int, spec: AudioSpec, seed: int) -> None:
    samples = np.random.default_rng(seed).integers(-5, 5, num_samples).astype(np.int16)
    windows = split_windows(samples, spec)
    assert [each.start for each in windows] == [0, *(each.stop for each in windows[:-1])]
    assert windows[-1].stop == num_samples
    assert all(1 <= each.num_samples <= spec.num_samples for each in windows)
    assert all(2 * each.num_samples >= spec.num_samples for each in windows[:-1])
    if len(windows) > 1:
        assert windows[-1].num_samples >= min(spec.sample_rate, spec.num_samples // 4)
    parts = [padded_window(samples, each, spec)[: each.num_samples] for each in windows]
    np.testing.assert_array_equal(np.concatenate(parts), samples)


def test_a_recording_of_one_window_is_not_cut() -> None:
    assert split_windows(noise(30), SPEC) == [AudioWindow(0, 30 * RATE)]
    assert split_windows(noise(0.1), SPEC) == [AudioWindow(0, RATE // 10)]


def test_windows_end_in_pauses() -> None:
    samples = silenced(noise(70), (12, 13), (26.5, 26.9), (29, 29.1), (52, 52.3))
    first, second, third = split_windows(samples, SPEC)
    assert 26.6 <= first.stop / RATE <= 26.8  # not 29: that is too short
    assert 52.1 <= second.stop / RATE <= 52.2
    assert third.stop == 70 * RATE


def test_the_last_window_is_not_tiny() -> None:
    *_, last = split_windows(noise(30.01), SPEC)
    assert last.num_samples >= RATE


def test_silence_is_divided_at_the_end_of_each_window() -> None:
    windows = split_windows(np.zeros(90 * RATE, np.int16), SPEC)
    assert [each.num_samples // RATE for each in windows] == [30, 30, 30]


def test_a_padded_window_ends_with_silence() -> None:
    samples = noise(2)
    padded = padded_window(samples, AudioWindow(100, 200), SPEC)
    assert padded.shape == (SPEC.num_samples,)
    np.testing.assert_array_equal(padded[:100], samples[100:200])
    assert not padded[100:].any()


def test_hours_are_divided_in_a_moment() -> None:
    samples = np.tile(noise(60), 120)
    started = time.thread_time()
    assert len(split_windows(samples, SPEC)) >= 240
    assert time.thread_time() - started < 1
