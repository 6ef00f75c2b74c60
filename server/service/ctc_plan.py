"""Validates requests of Transcribe for encoders, and makes the engine's job for each window."""

from dataclasses import dataclass

from model.audio import Samples
from model.bundle import AudioSpec, CtcTokens
from server.engine.requests.job import EncodingJob
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.audio_windows import AudioWindow, samples_of
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.transcription_plan import MAX_WINDOWS_AT_ONCE, requested_language
from server.service.transcription_request import TranscribeRequest, TranscriptionOptions


@dataclass(frozen=True, slots=True)
class CtcPlan:
    """A validated request.

    Attributes:
        model: that transcribes.
        audio: of a window.
        hop_size: samples from one frame to the next.
        tokens: special ones of the model.
        language: of the speech; empty: the bundle does not state it.
        max_windows: in progress at a time.
        has_words: whether the request asks for the times of words.
        deadline: the client's timeout, in the engine's clock (seconds).
    """

    model: Model
    audio: AudioSpec
    hop_size: int
    tokens: CtcTokens
    language: str
    max_windows: int
    has_words: bool
    deadline: float | None

    def job_of(self, samples: Samples, window: AudioWindow) -> EncodingJob:
        """The job that reads a window of ``samples``; silence fills up one without a frame."""
        own = samples_of(samples, window, self.audio)
        return EncodingJob(
            (),
            samples=own,
            num_audio_tokens=self.audio.tokens_of(len(own)),
            deadline=self.deadline,
            adapter=self.model.adapter,
        )

    def seconds(self, window: AudioWindow, frame: int) -> float:
        """When a frame of ``window`` starts, in seconds from the start of the recording."""
        return (window.start + frame * self.hop_size) / self.audio.sample_rate


def plan_ctc(
    request: TranscribeRequest, model: Model, context: ServiceContext, caller: Caller
) -> CtcPlan:
    """Validates all options of a request to a model with CTC.

    Raises:
        InvalidArgumentError: names the invalid option.
        OverloadedError: the model's queue is full.
    """
    manifest, options = model.manifest, request.options
    audio, tokens = manifest.audio, manifest.ctc
    if audio is None or not audio.hop_size or not tokens:
        raise InvalidArgumentError("model", f"the bundle of {manifest.name!r} lacks its tokens")
    _check_options(options, manifest.name)
    language = requested_language(options, model)
    context.engine.check(model.key, 1, caller.client)
    return CtcPlan(
        model=model,
        audio=audio,
        hop_size=audio.hop_size,
        tokens=tokens,
        language=language,
        max_windows=MAX_WINDOWS_AT_ONCE,
        has_words=options.word_timestamps,
        deadline=caller.deadline,
    )


def _check_options(options: TranscriptionOptions, name: str) -> None:
    """Rejects options of models that generate text token by token."""
    if options.translate:
        raise InvalidArgumentError("translate", f"{name!r} does not translate")
    if options.prompt.strip():
        raise InvalidArgumentError("prompt", f"{name!r} takes none")
    if options.temperature:
        raise InvalidArgumentError("temperature", f"{name!r} only decodes greedily, without one")
    if options.beam_size > 1:
        raise InvalidArgumentError("beam_size", f"{name!r} only decodes greedily")
