"""Recordings: containers, codecs, and sizes that headers claim."""

from collections.abc import Iterator

from model.audio import AudioError, open_audio
from tests.recordings import ENCODERS, encoded, tone, wav

SIZE = 1 << 14
RATE = 16_000


def run(data: bytes) -> None:
    """``data``: a file."""
    try:
        reader = open_audio(data, RATE)
    except AudioError as error:
        str(error).encode()
        return
    try:
        for _ in range(10):
            if len(reader.read(RATE)) < RATE:
                return
    except AudioError as error:
        str(error).encode()
    finally:
        reader.close()


def seeds() -> Iterator[bytes]:
    for name in ENCODERS:
        yield encoded(name, tone(0.03, 48_000), 48_000, "stereo")
    yield wav(tone(0.1, 8_000), 8_000)
    yield b"ID3\4\0\0\0\0\0\5title" + encoded("mp3", tone(0.1, RATE), RATE)
