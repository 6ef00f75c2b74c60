"""Recordings as files for FFmpeg: the format, the data without tags, and a limit of CPU time."""

import io
import time

FORMATS = ("WAV", "FLAC", "MP3", "Ogg", "MP4", "WebM")
# The most CPU time of a thread for the header or a block: a hundred times what sane files take.
MAX_CPU_SECONDS = 2.0
_ID3_HEADER_BYTES = 10


class AudioError(Exception):
    """A recording that cannot be read. ``str(error)`` completes "the recording …"."""


class AudioFile(io.BytesIO):
    """A file that FFmpeg reads in parts of 32 KB.

    Attributes:
        demuxer: FFmpeg's name of the format.
        num_bytes: size without tags.
        is_late: whether the thread's time is over; the file then appears to end at the last read.
    """

    def __init__(self, data: bytes) -> None:
        """Raises ``AudioError`` if ``data`` is in none of :data:`FORMATS`."""
        start = _id3_bytes(data)
        self.demuxer = _demuxer_of(data[start : start + 12], has_id3=start > 0)
        self.num_bytes = len(data) - start
        self.is_late = False
        self._last_thread_time = 0.0
        super().__init__(data[start:])

    def start_clock(self) -> None:
        """Allows the thread that calls this :data:`MAX_CPU_SECONDS` from now."""
        self._last_thread_time = time.thread_time() + MAX_CPU_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        """The next ``size`` bytes. Raises nothing: PyAV would print that."""
        self.is_late |= time.thread_time() > self._last_thread_time
        return b"" if self.is_late else super().read(size)


def _id3_bytes(data: bytes) -> int:
    """Size of the ID3v2 tags before a file: titles and pictures, which are skipped."""
    start = 0
    while data[start : start + 3] == b"ID3" and len(data) >= start + _ID3_HEADER_BYTES:
        size = 0
        for byte in data[start + 6 : start + _ID3_HEADER_BYTES]:
            size = size << 7 | byte & 0x7F
        has_footer = bool(data[start + 5] & 0x10)
        start += size + _ID3_HEADER_BYTES * (1 + has_footer)
    return start


def _demuxer_of(header: bytes, *, has_id3: bool) -> str:
    """FFmpeg's name of a file's format, from its first 12 bytes.

    FFmpeg must not choose, since some of its formats are lists of other files to open.
    """
    if header[:4] in {b"RIFF", b"RF64"} and header[8:] == b"WAVE":
        return "wav"
    if header[:4] == b"fLaC":
        return "flac"
    if header[:4] == b"OggS":
        return "ogg"
    if header[4:8] == b"ftyp":
        return "mov"
    if header[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    # A layer III frame, or the zeros that some programs write after a tag.
    is_frame = len(header) > 1 and header[0] == 0xFF and header[1] & 0xE6 == 0xE2
    if is_frame or (has_id3 and header):
        return "mp3"
    raise AudioError(f"is not one of {', '.join(FORMATS)}")
