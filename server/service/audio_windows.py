"""Divides a recording into a model's windows, at quiet places."""

from dataclasses import dataclass

import numpy as np

from model.audio import Samples
from model.bundle import AudioSpec

# A window ends in the middle of the quietest 0.2 s of its last 5 s. Plosives such as "p" are quiet
# for less than 0.2 s.
_SEARCH_SECONDS = 5.0
_QUIET_SECONDS = 0.2
_STEP_SECONDS = 0.01  # distance between candidate places
# Maximum magnitude of a silent sample: as large as the noise of dithering.
_SILENT_SAMPLE = 2
# Searching this many samples for quiet places costs 1: see :mod:`server.service.threads`.
SAMPLES_PER_UNIT = 384
_MIN_SECONDS = 1.0  # minimum length of the last window; models invent text for shorter ones


@dataclass(frozen=True, slots=True)
class AudioWindow:
    """The samples ``start`` to ``stop`` (exclusive) of a recording."""

    start: int
    stop: int

    @property
    def num_samples(self) -> int:
        return self.stop - self.start


def split_windows(samples: Samples, spec: AudioSpec) -> list[AudioWindow]:
    """Divides a recording into windows of at most ``spec.num_samples``, without gaps or overlaps.

    Each window except the last ends in the middle of the quietest 0.2 s of its last 5 s, so that no
    word is cut; among equally quiet places, the last one wins. ``samples`` must not be empty.
    """
    search = min(_num_samples(_SEARCH_SECONDS, spec), spec.num_samples // 2)
    shortest = min(_num_samples(_MIN_SECONDS, spec), spec.num_samples // 4)
    windows, start = [], 0
    while len(samples) - start > spec.num_samples:
        last = min(start + spec.num_samples, len(samples) - shortest)
        stop = _quietest(samples, start + spec.num_samples - search, last, spec)
        windows.append(AudioWindow(start, stop))
        start = stop
    return [*windows, AudioWindow(start, len(samples))]


def windows_with_sound(samples: Samples, spec: AudioSpec) -> list[AudioWindow]:
    """Like :func:`split_windows`, but without silent windows, for which models invent text."""
    return [
        window
        for window in split_windows(samples, spec)
        if _peak(samples[window.start : window.stop]) > _SILENT_SAMPLE
    ]


def samples_of(samples: Samples, window: AudioWindow, spec: AudioSpec) -> Samples:
    """The samples of ``window``; silence fills up one without a frame."""
    own = samples[window.start : window.stop]
    missing = (spec.frame_size or 0) - len(own)
    return np.pad(own, (0, missing)) if missing > 0 else own


def padded_window(samples: Samples, window: AudioWindow, spec: AudioSpec) -> Samples:
    """The samples of ``window``, padded with silence to ``[spec.num_samples]``."""
    padded = np.zeros(spec.num_samples, np.int16)
    padded[: window.num_samples] = samples[window.start : window.stop]
    return padded


def _quietest(samples: Samples, first: int, last: int, spec: AudioSpec) -> int:
    """The index from ``first`` to ``last`` around which the samples have the least energy."""
    half = _num_samples(_QUIET_SECONDS / 2, spec)
    places = np.arange(last, first - 1, -_num_samples(_STEP_SECONDS, spec))
    start, stop = max(first - half, 0), min(last + half, len(samples))
    squares = np.square(samples[start:stop], dtype=np.int64)
    energy = np.concatenate(([0], np.cumsum(squares)))  # before each sample
    before = energy[np.maximum(places - half, start) - start]
    after = energy[np.minimum(places + half, stop) - start]
    return int(places[np.argmin(after - before)])


def _peak(samples: Samples) -> int:
    """The largest magnitude; correct for -32,768, too."""
    return max(int(samples.max()), -int(samples.min()))


def _num_samples(seconds: float, spec: AudioSpec) -> int:
    return max(1, round(seconds * spec.sample_rate))
