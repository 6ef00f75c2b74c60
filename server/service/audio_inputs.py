"""Decodes a request's recordings and divides them into windows, as inputs of an encoder call."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from model.audio import Samples
from model.bundle import AudioSpec
from server.engine.requests.job import EncodingJob
from server.engine.requests.update import EncoderOutput
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.audio import decoded_audio
from server.service.audio_windows import (
    SAMPLES_PER_UNIT,
    AudioWindow,
    samples_of,
    split_windows,
)
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import Floats, LengthOptions
from server.service.prepared_inputs import PreparedInputs
from server.service.truncation import Truncation
from server.service.usage import Usage
from server.text.windows import LongInput, TooLongError


@dataclass(frozen=True, slots=True)
class _Recording:
    """Decoded ``samples``, and the windows that the model reads."""

    samples: Samples
    windows: list[AudioWindow]


@asynccontextmanager
async def prepared_recordings(
    recordings: Sequence[bytes], length: LengthOptions, call: EncoderCall
) -> AsyncIterator[PreparedInputs]:
    """Decodes recordings, one input per recording, for the block that runs them.

    A recording that is longer than a window of the model is divided at quiet places by default.
    The memory of the files and their samples is reserved until the block ends.

    Raises:
        InvalidArgumentError: the model takes no recordings, an option does not apply to them, or a
            recording is damaged or too long; the error names it.
        ServeError: the queue is full, too many recordings are in progress, or the deadline passed.
    """
    spec, started = audio_spec(call.model), time.monotonic()
    for name in ("max_tokens", "stride"):
        if getattr(length, name) is not None:
            raise InvalidArgumentError(name, "does not apply to recordings")
    call.context.engine.check(call.model.key, len(recordings), call.caller.client)
    long_input = length.long_input or LongInput.WINDOWS
    async with AsyncExitStack() as memory:
        read: list[_Recording] = []
        for index, data in enumerate(recordings):
            field = f"audio[{index}]"
            decoded = decoded_audio(data, spec, call.context, call.caller, field)
            samples = await memory.enter_async_context(decoded)
            windows = await call.context.in_thread(
                partial(_windows, samples, spec, long_input, field),
                call.caller,
                len(samples) // SAMPLES_PER_UNIT,
            )
            read.append(_Recording(samples, windows))
            _spend(windows, spec, call, field)
        call.prepare_seconds += time.monotonic() - started
        yield _prepared(read, spec, call)


def audio_spec(model: Model) -> AudioSpec:
    """The model's input format.

    Raises:
        InvalidArgumentError: the model takes no recordings.
    """
    manifest = model.manifest
    if manifest.audio is None:
        taken = "texts" if manifest.reads_texts else "images"
        raise InvalidArgumentError("audio", f"{manifest.name!r} takes {taken}, not recordings")
    return manifest.audio


def mean_logits(outputs: Sequence[EncoderOutput], jobs: Sequence[EncodingJob]) -> Floats:
    """The mean ``[labels]`` of an input's logits, weighted by the length of its windows.

    For a model whose logits are linear in the mean of a window's vectors, such as Wav2Vec2, it has
    the logits of the mean of all vectors of a recording.
    """
    if len(outputs) == 1:
        return outputs[0].vector
    weights = [0 if job.samples is None else len(job.samples) for job in jobs]
    mean: Floats = np.average([output.vector for output in outputs], 0, weights)
    return mean.astype(np.float32)


def _windows(
    samples: Samples, spec: AudioSpec, long_input: LongInput, field: str
) -> list[AudioWindow]:
    """The parts of a recording that the model reads."""
    if len(samples) <= spec.num_samples:
        return [AudioWindow(0, len(samples))]
    if long_input == LongInput.WINDOWS:
        return split_windows(samples, spec)
    if long_input == LongInput.TRUNCATE_RIGHT:
        return [AudioWindow(0, spec.num_samples)]
    if long_input == LongInput.TRUNCATE_LEFT:
        return [AudioWindow(len(samples) - spec.num_samples, len(samples))]
    seconds = len(samples) / spec.sample_rate
    raise InvalidArgumentError(
        field, f"lasts {seconds:.1f} seconds, at most {spec.window_seconds:g} are accepted"
    )


def _spend(windows: Sequence[AudioWindow], spec: AudioSpec, call: EncoderCall, field: str) -> None:
    """Counts the windows of a recording against the limits of the request."""
    num_tokens = sum(_num_tokens(window.num_samples, spec) for window in windows)
    try:
        call.budget.spend(len(windows), num_tokens)
    except TooLongError as error:
        raise InvalidArgumentError(field, str(error)) from error


def _num_tokens(num_samples: int, spec: AudioSpec) -> int:
    return spec.tokens_of(max(num_samples, spec.frame_size or 0))


def _prepared(
    recordings: Sequence[_Recording], spec: AudioSpec, call: EncoderCall
) -> PreparedInputs:
    num_windows = sum(len(recording.windows) for recording in recordings)

    def job(recording: _Recording, window: AudioWindow) -> EncodingJob:
        samples = samples_of(recording.samples, window, spec)
        return EncodingJob(
            (),
            samples=samples,
            num_audio_tokens=spec.tokens_of(len(samples)),
            is_bulk=call.is_bulk,
            deadline=call.caller.deadline,
            num_texts=num_windows,
            adapter=call.model.adapter,
        )

    jobs = [[job(own, window) for window in own.windows] for own in recordings]
    return PreparedInputs(
        jobs=jobs,
        usages=[Usage(input_tokens=sum(job.num_tokens for job in own)) for own in jobs],
        truncations=[_truncation(own, spec) for own in recordings],
    )


def _truncation(recording: _Recording, spec: AudioSpec) -> Truncation:
    """``truncated_tokens`` are as many as a window has for samples of this length."""
    num_read = sum(window.num_samples for window in recording.windows)
    num_dropped = len(recording.samples) - num_read
    num_tokens = -(-num_dropped * spec.num_tokens // spec.num_samples)
    return Truncation(truncated_tokens=num_tokens, windows=len(recording.windows))
