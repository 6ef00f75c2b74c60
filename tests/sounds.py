"""Recordings for tests."""

import io
import wave

import numpy as np


def recording(seconds: float, sample_rate: int = 16_000) -> bytes:
    """A WAV file with a sweeping tone that pauses."""
    times = np.arange(round(seconds * sample_rate)) / sample_rate
    tone = np.sin(2 * np.pi * 220 * times * (1 + 0.3 * np.sin(times))) * (np.sin(2 * times) > 0)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        writer.writeframes((8000 * tone).astype(np.int16).tobytes())
    return file.getvalue()
