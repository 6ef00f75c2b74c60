"""Mixes the frames of a recording down to one channel and resamples them with FFmpeg."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from model.audio_file import AudioError

if TYPE_CHECKING:
    from av import AudioFrame, AudioResampler

Samples = npt.NDArray[np.int16]  # mono

MIN_SAMPLE_RATE = 4_000
MAX_SAMPLE_RATE = 384_000
MAX_CHANNELS = 8


class Mixer:
    """Turns frames into samples at one rate. Frames may differ in rate and channels."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._shape: tuple[object, ...] = ()
        self._resampler: AudioResampler | None = None

    def add(self, frame: "AudioFrame") -> Iterator[Samples]:
        """Adds a frame; returns the samples that are complete after it.

        Raises:
            AudioError: the frame's rate or channels are not supported.
        """
        from av import AudioResampler  # noqa: PLC0415

        shape = (frame.sample_rate, frame.layout.name, frame.format.name)
        if shape != self._shape:
            yield from self.flush()
            check_shape(frame.sample_rate, frame.layout.nb_channels)
            self._resampler = AudioResampler("s16", "mono", self._sample_rate)
            self._shape = shape
        yield from self._resample(frame)

    def flush(self) -> Iterator[Samples]:
        """Returns the samples that remain in the resampler."""
        yield from self._resample(None)

    def _resample(self, frame: "AudioFrame | None") -> Iterator[Samples]:
        from av import FFmpegError  # noqa: PLC0415

        if self._resampler is None:
            return
        try:
            frames = self._resampler.resample(frame)
        except (FFmpegError, ValueError, MemoryError) as error:
            raise AudioError("is damaged") from error
        for one in frames:
            yield cast(Samples, one.to_ndarray().reshape(-1))


def check_shape(sample_rate: int, num_channels: int) -> None:
    """Raises ``AudioError`` if frames with this rate and these channels are not supported."""
    if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
        raise AudioError(
            f"has {sample_rate} samples per second: {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} are "
            "accepted"
        )
    if not 1 <= num_channels <= MAX_CHANNELS:
        raise AudioError(f"has {num_channels} channels, at most {MAX_CHANNELS} are accepted")
