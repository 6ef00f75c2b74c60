"""Decodes the recording of a request in blocks, within limits of time and memory."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import numpy as np

from model.audio import AudioError, AudioReader, Samples
from model.bundle import AudioSpec
from server.bounds import MAX_AUDIO_BYTES, MAX_AUDIO_SECONDS
from server.errors import InvalidArgumentError
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.threads import MAX_SLICE_COST, Slice

FIELD = "audio"  # the request field with the only recording

_BLOCK_SECONDS = 10  # decoding a block takes 5 ms (WAV) to 30 ms (Opus)


@asynccontextmanager
async def decoded_audio(
    data: bytes, spec: AudioSpec, context: ServiceContext, caller: Caller, field: str = FIELD
) -> AsyncIterator[Samples]:
    """Decodes a recording in the service's threads: mono, int16, at ``spec.sample_rate``.

    The memory of the file and its samples is reserved until the ``async with`` block ends. Pass
    the samples to :func:`server.service.audio_windows.split_windows`.

    Args:
        data: a file in one of :data:`model.audio.FORMATS`.
        spec: the model's audio format.
        context: the server's components.
        caller: the client and the deadline of the call.
        field: the request field with the recording, for errors.

    Raises:
        InvalidArgumentError: the recording is damaged, empty, too large or too long.
        ServeError: too many recordings are in progress, or the deadline passed.
    """
    if len(data) > MAX_AUDIO_BYTES:
        raise InvalidArgumentError(
            field, f"has {len(data)} bytes, at most {MAX_AUDIO_BYTES} are accepted"
        )
    with ExitStack() as memory:
        memory.enter_context(context.decoded_memory.reserve(len(data), caller.client, field))
        decoding = _Decoding(_reader(data, spec, field), spec.sample_rate, field)
        try:
            slices = _slices(decoding, context, caller, memory)
            await context.threads.run(slices, caller, cost=len(data))
        finally:
            decoding.reader.close()
        yield decoding.samples


class _Decoding:
    """A recording whose first ``num_samples`` are decoded. Only one slice at a time uses it."""

    def __init__(self, reader: AudioReader, sample_rate: int, field: str) -> None:
        self.reader = reader
        self.field = field
        self.sample_rate = sample_rate
        self.num_samples = 0
        self.is_complete = False
        # The operating system allocates a page only when it is written.
        self._buffer = np.empty(MAX_AUDIO_SECONDS * sample_rate, np.int16)

    @property
    def samples(self) -> Samples:
        return self._buffer[: self.num_samples]

    def open(self) -> None:
        try:
            self.reader.open()
        except AudioError as error:
            raise InvalidArgumentError(self.field, f"the recording {error}") from error
        _check_seconds(self.reader.claimed_seconds or 0, self.field)

    def read(self) -> None:
        """Decodes the next block."""
        block_samples = _BLOCK_SECONDS * self.sample_rate
        try:
            block = self.reader.read(block_samples)
        except AudioError as error:
            raise InvalidArgumentError(self.field, f"the recording {error}") from error
        stop = self.num_samples + len(block)
        _check_seconds(stop / self.sample_rate, self.field)
        self._buffer[self.num_samples : stop] = block
        self.num_samples = stop
        self.is_complete = len(block) < block_samples
        if self.is_complete and not self.num_samples:
            raise InvalidArgumentError(self.field, "the recording is empty")


def _slices(
    decoding: _Decoding, context: ServiceContext, caller: Caller, memory: ExitStack
) -> Iterator[Slice[None]]:
    """Yields slices that decode the header, then the blocks; reserves memory before each block."""
    block_bytes = _BLOCK_SECONDS * decoding.sample_rate * 2
    num_reserved = 0
    yield Slice(MAX_SLICE_COST, decoding.open)
    while not decoding.is_complete:
        more = decoding.samples.nbytes + block_bytes - num_reserved
        memory.enter_context(context.decoded_memory.reserve(more, caller.client, decoding.field))
        num_reserved += more
        yield Slice(MAX_SLICE_COST, decoding.read)


def _reader(data: bytes, spec: AudioSpec, field: str) -> AudioReader:
    try:
        return AudioReader(data, spec.sample_rate)
    except AudioError as error:
        raise InvalidArgumentError(field, f"the recording {error}") from error


def _check_seconds(seconds: float, field: str) -> None:
    if seconds > MAX_AUDIO_SECONDS:
        raise InvalidArgumentError(
            field, f"lasts more than {MAX_AUDIO_SECONDS} seconds, which are the most"
        )
