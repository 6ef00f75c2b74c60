"""Recordings for tests: tones, and the files that FFmpeg's encoders make of them."""

import io
import wave

import numpy as np
from av import AudioFrame, AudioStream
from av import open as open_container

from model.audio import Samples

# Container and encoder of each format that is accepted.
ENCODERS = {
    "wav": ("wav", "pcm_s16le"),
    "wav, 24 bits": ("wav", "pcm_s24le"),
    "wav, float": ("wav", "pcm_f32le"),
    "wav, 8 bits": ("wav", "pcm_u8"),
    "wav, mu-law": ("wav", "pcm_mulaw"),
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "opus": ("ogg", "libopus"),
    "vorbis": ("ogg", "vorbis"),
    "flac in ogg": ("ogg", "flac"),
    "m4a": ("ipod", "aac"),
    "alac": ("ipod", "alac"),
    "webm": ("webm", "libopus"),
}
# An encoder gets at most as many samples at a time: FFmpeg allocates no more than 16 MiB.
FRAME_SAMPLES = 1 << 20


def tone(seconds: float, rate: int, hertz: float = 440.0, start: float = 0.0) -> Samples:
    """A sine at a quarter of the full volume, from ``start`` seconds; silence before."""
    times = np.arange(round(seconds * rate)) / rate
    wave_ = np.sin(2 * np.pi * hertz * times) * 8192 * (times >= start)
    return wave_.astype(np.int16)


def wav(samples: Samples, rate: int = 16_000) -> bytes:
    """``samples [N]`` or ``[N, channels]`` as a WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def encoded(name: str, samples: Samples, rate: int, layout: str = "mono") -> bytes:
    """``samples``, the same in each channel of ``layout``, by one of :data:`ENCODERS`."""
    container_name, codec = ENCODERS[name]
    buffer = io.BytesIO()
    channels = {"mono": 1, "stereo": 2}[layout]
    with open_container(buffer, "w", container_name) as container:
        stream = container.add_stream(codec, rate=rate, options={"strict": "-2"}, layout=layout)
        assert isinstance(stream, AudioStream)
        for start in range(0, len(samples), FRAME_SAMPLES):
            rows = np.repeat(samples[start : start + FRAME_SAMPLES], channels).reshape(1, -1)
            frame = AudioFrame.from_ndarray(rows, format="s16", layout=layout)
            frame.sample_rate, frame.pts = rate, start
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return buffer.getvalue()
