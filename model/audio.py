"""Recordings as samples: decoding, mixing and resampling with FFmpeg. Imports no torch."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from model.audio_file import FORMATS, AudioError, AudioFile
from model.audio_mixer import Mixer, Samples, check_shape

if TYPE_CHECKING:
    from av import AudioCodecContext, AudioStream, Packet
    from av.container import InputContainer

__all__ = ["FORMATS", "AudioError", "AudioReader", "Samples", "decode_audio", "open_audio"]

CODECS = frozenset(
    (
        *("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"),
        *("pcm_alaw", "pcm_mulaw", "flac", "alac", "mp3", "mp3float", "aac", "vorbis", "opus"),
    )
)
# The most bytes of an encoded packet: more than a second of 8 channels in any codec but high-rate
# PCM.
MAX_PACKET_BYTES = 1 << 20
# The most bytes of one allocation by FFmpeg: twice what a table of 2 hours of packets takes.
MAX_ALLOCATION_BYTES = 1 << 24
# FFmpeg uses no other decoder while it looks for streams, and never opens other files.
_OPTIONS = {
    "codec_whitelist": ",".join(sorted(CODECS)),
    "protocol_whitelist": "none",
    "max_streams": "16",
}


class AudioReader:
    """Decodes a recording in blocks. Any thread may read the next block, one at a time.

    Like players, it skips damaged packets, and reads a truncated file up to its end.

    Attributes:
        claimed_seconds: the length that the header states, which may be wrong. None: it states
            none, or :meth:`open` was not called.
    """

    def __init__(self, data: bytes, sample_rate: int) -> None:
        """``sample_rate``: that of the samples to return, in Hz.

        Raises:
            AudioError: ``data`` is in none of :data:`FORMATS`.
        """
        self._file = AudioFile(data)
        self._sample_rate = sample_rate
        self._container: InputContainer | None = None
        self._blocks: Iterator[Samples] = iter(())
        self._lock = threading.Lock()  # guards the next two
        self._is_running = self._is_closed = False
        self.claimed_seconds: float | None = None

    def open(self) -> None:
        """Reads the header. Call it once, before :meth:`read`.

        Raises:
            AudioError: the file is damaged, has no audio, or audio that is not supported.
        """
        with self._running():
            self._container = self._open()
            stream = _audio_stream(self._container)
            self.claimed_seconds = self._claimed_seconds(self._container, stream.codec_context)
            self._blocks = _decode(self._container, stream, self._sample_rate)

    def read(self, num_samples: int) -> Samples:
        """Returns at least ``num_samples`` samples: all samples of the packets that it decodes.

        Returns:
            Fewer than ``num_samples`` at the end, then none.

        Raises:
            AudioError: the file is damaged.
        """
        blocks: list[Samples] = []
        with self._running():
            while sum(map(len, blocks)) < num_samples:
                block = next(self._blocks, None)
                if block is None:
                    break
                blocks.append(block)
        return np.concatenate(blocks) if blocks else np.zeros(0, np.int16)

    def close(self) -> None:
        """Frees FFmpeg's memory, at once or when a thread has read its block."""
        with self._lock:
            self._is_closed = True
            is_running = self._is_running
        if not is_running:
            self._free()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self._lock:
            if self._is_closed:
                raise AudioError("was closed")
            self._is_running = True
        self._file.start_clock()
        try:
            yield
        finally:
            with self._lock:
                self._is_running = False
                is_closed = self._is_closed
            if is_closed:
                self._free()
            if self._file.is_late:
                raise AudioError("takes too long to decode")

    def _free(self) -> None:
        self._blocks = iter(())
        if self._container is not None:
            self._container.close()
            self._container = None

    def _open(self) -> "InputContainer":
        import av  # noqa: PLC0415  (takes 20 MB and 0.1 s)

        _bound_allocations()
        try:
            return av.open(
                self._file,
                "r",
                self._file.demuxer,
                container_options=_OPTIONS,
                metadata_errors="replace",
                io_open=_refuse,
            )
        except (av.FFmpegError, ValueError, MemoryError) as error:
            raise AudioError("is damaged") from error

    def _claimed_seconds(
        self, container: "InputContainer", context: "AudioCodecContext"
    ) -> float | None:
        duration = container.duration  # in microseconds
        # FFmpeg estimates the duration of an MP3 file from its first frames.
        if self._file.demuxer == "mp3" or duration is None or duration < 0:
            return None
        if context.name.startswith("pcm") and context.bit_rate:
            # Programs that write to a pipe claim the maximum, since they do not know the length.
            return min(duration / 1e6, 8 * self._file.num_bytes / context.bit_rate)
        return duration / 1e6


def open_audio(data: bytes, sample_rate: int) -> AudioReader:
    """Opens a recording, to be read in blocks at ``sample_rate`` and closed.

    Raises:
        AudioError: as :meth:`AudioReader.open`, or ``data`` is in none of :data:`FORMATS`.
    """
    reader = AudioReader(data, sample_rate)
    try:
        reader.open()
    except BaseException:
        reader.close()
        raise
    return reader


def decode_audio(data: bytes, sample_rate: int) -> Samples:
    """The whole recording ``data``, mono, at ``sample_rate``.

    Raises:
        AudioError: as :func:`open_audio` and :meth:`AudioReader.read`.
    """
    reader = open_audio(data, sample_rate)
    try:
        blocks = [reader.read(sample_rate)]
        while len(blocks[-1]):
            blocks.append(reader.read(sample_rate))
    finally:
        reader.close()
    return np.concatenate(blocks)


@cache
def _bound_allocations() -> None:
    """Limits FFmpeg's allocations. Without it, an MP4 file of 17 KB can make FFmpeg allocate 2 GB.

    The file states the size of a table. PyAV does not expose this function of FFmpeg, whose library
    its wheel contains.
    """
    import av  # noqa: PLC0415

    for library in Path(av.__file__).parents[1].glob("av.libs/libavutil*"):
        ctypes.CDLL(str(library)).av_max_alloc(ctypes.c_size_t(MAX_ALLOCATION_BYTES))


def _decode(
    container: "InputContainer", stream: "AudioStream", sample_rate: int
) -> Iterator[Samples]:
    """The samples of each packet."""
    from av import FFmpegError  # noqa: PLC0415

    mixer, num_decoded, num_damaged = Mixer(sample_rate), 0, 0
    for packet in _packets(container, stream):
        try:
            frames = stream.codec_context.decode(packet)
        except (FFmpegError, ValueError, MemoryError):
            num_damaged += 1
            continue
        num_decoded += len(frames)
        for frame in frames:
            yield from mixer.add(frame)
    yield from mixer.flush()
    if num_damaged > num_decoded:
        raise AudioError("is damaged")


def _packets(
    container: "InputContainer", stream: "AudioStream"
) -> Iterator["Packet[AudioStream] | None"]:
    """All packets of a stream, then None, which makes the decoder return its remaining frames."""
    from av import FFmpegError  # noqa: PLC0415

    packets = container.demux(stream)
    try:
        for packet in packets:
            if packet.size > MAX_PACKET_BYTES:
                raise AudioError("has a packet that is too large")
            if packet.size:
                yield packet
    except FFmpegError:
        pass  # the file was cut off
    yield None


def _audio_stream(container: "InputContainer") -> "AudioStream":
    """The stream to decode, which FFmpeg's rules choose.

    Raises:
        AudioError: there is none, or it is not supported.
    """
    stream = cast("AudioStream | None", container.streams.best("audio"))
    if stream is None:
        raise AudioError("has no audio")
    context = cast("AudioCodecContext | None", stream.codec_context)
    if context is None or context.name not in CODECS:
        raise AudioError("has a codec that is not supported")
    check_shape(context.sample_rate, context.channels)
    context.thread_count = 1
    return stream


def _refuse(*_: Any) -> NoReturn:
    """Refuses to open another file that a recording names."""
    raise AudioError("names another file")
