"""Transcribes one window of a recording with one job, or with several at rising temperatures."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from model.audio import Samples
from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.job import GenerationJob
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import Completion, PromptOutput
from server.service.audio_windows import AudioWindow, padded_window
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.follow_up import Submissions
from server.service.segments import TokenSegment, compression_ratio, divide
from server.service.token_clock import TokenClock
from server.service.transcription_plan import TranscriptionPlan
from server.service.transcription_request import Segment, Word
from server.service.usage import Usage, error_of
from server.service.word_times import LANGUAGES_WITHOUT_SPACES, of_heads, timed_words, token_starts

# Radford et al. 2022, section 4.5: a text is not plausible if it repeats itself or if the model is
# unsure of it. A window has no text if the model is unsure and probably hears no speech.
MAX_COMPRESSION_RATIO = 2.4
MIN_MEAN_LOGPROB = -1.0
MAX_NO_SPEECH_PROBABILITY = 0.6
DECIMALS = 3  # decimal places of times in seconds
# The rest of a window is transcribed as another window if neither the rest nor the part before it
# is shorter than these.
_MIN_REST_SECONDS = 0.5
_MIN_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WindowText:
    """One attempt at a window.

    ``token_ids`` includes timestamps but no other special tokens; ``logprobs`` excludes timestamps.
    ``is_cut``: the output reached its maximum length. Other fields are those of :class:`Segment`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_cut: bool
    mean_logprob: float
    compression_ratio: float
    no_speech_probability: float
    temperature: float

    @property
    def is_silent(self) -> bool:
        is_unsure = self.mean_logprob < MIN_MEAN_LOGPROB
        return is_unsure and self.no_speech_probability > MAX_NO_SPEECH_PROBABILITY

    @property
    def repeats_itself(self) -> bool:
        return self.compression_ratio > MAX_COMPRESSION_RATIO

    @property
    def is_plausible(self) -> bool:
        return self.mean_logprob >= MIN_MEAN_LOGPROB and not self.repeats_itself


@dataclass(frozen=True, slots=True)
class _Output:
    """The whole output of a job, including its last token.

    ``prompt`` is that of the update. ``is_cut`` means that the output reached its maximum length.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt: PromptOutput
    is_cut: bool


@dataclass(slots=True)
class TranscriptionCall:
    """The state of one call for all of its windows, each of which has a task that uses it.

    Attributes:
        plan: the validated request.
        language: a future of the speech's language.
        language_probability: set when the window that detects the language is done.
        completions: the completions of all jobs so far.
        usage: the usage of all jobs so far, repeated attempts included.
    """

    plan: TranscriptionPlan
    context: ServiceContext
    caller: Caller
    language: "asyncio.Future[str]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    language_probability: float = 1.0
    completions: list[Completion] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    _submissions: Submissions = field(init=False)

    def __post_init__(self) -> None:
        self._submissions = Submissions(self.context, self.plan.model.key, self.caller.client)
        if not self.plan.detects_language:
            self.language.set_result(self.plan.language)

    async def transcribe(
        self, samples: Samples, window: AudioWindow, *, is_first: bool
    ) -> tuple[Segment, ...]:
        """Returns the segments of one window.

        If the model leaves a part untranscribed, that part is transcribed as another window.

        Args:
            samples: the samples of the recording.
            window: the window, which must fit the model's input.
            is_first: whether this window detects an unknown language; others wait for it.

        Raises:
            ServeError: a job failed, or the deadline passed.
        """
        spec = self.plan.audio
        segments: tuple[Segment, ...] = ()
        if not is_first:
            await asyncio.shield(self.language)
        while True:
            text = await self._decode(padded_window(samples, window, spec))
            if text.is_silent:
                return segments
            num_seconds = window.num_samples / spec.sample_rate
            divided = divide(text.token_ids, self.plan.tokens, num_seconds, is_cut=text.is_cut)
            words: list[tuple[Word, ...]] = [()] * len(divided.segments)
            if self.plan.alignment_heads and divided.segments:
                words = await self._words(samples, window, text, divided.segments)
            start_seconds = window.start / spec.sample_rate
            segments += self._segments(text, divided.segments, words, start_seconds)
            rest = divided.rest_seconds
            if (
                rest is None
                or rest < _MIN_PROGRESS_SECONDS
                or num_seconds - rest < _MIN_REST_SECONDS
            ):
                return segments
            window = AudioWindow(window.start + round(rest * spec.sample_rate), window.stop)

    async def _decode(self, samples: Samples) -> WindowText:
        """Returns the first plausible or silent attempt, else the most likely one.

        Texts that repeat themselves are likely, too, so they rank last.
        """
        attempts = []
        for temperature in self.plan.temperatures:
            language = self.language.result() if self.language.done() else ""
            output = await self._run(self.plan.job_of(samples, temperature, language))
            if not language and self.plan.detects_language:
                language = await asyncio.shield(self.language)
                probability = self.plan.language_probability(language, output.prompt.first_logprobs)
                self.language_probability = probability
            text = self._text_of(output, temperature)
            if text.is_silent or text.is_plausible:
                return text
            attempts.append(text)
        return max(attempts, key=lambda text: (not text.repeats_itself, text.mean_logprob))

    async def _words(
        self,
        samples: Samples,
        window: AudioWindow,
        text: WindowText,
        segments: Sequence[TokenSegment],
    ) -> list[tuple[Word, ...]]:
        """Returns the words of each segment, from a second run of the model over the text."""
        plan, spec = self.plan, self.plan.audio
        language = self.language.result()
        token_ids = [id_ for segment in segments for id_ in segment.token_ids]
        job = plan.alignment_job(padded_window(samples, window, spec), token_ids, language)
        attention = None if job is None else (await self._run(job)).prompt.attention
        if attention is None:
            return [()] * len(segments)
        weights = of_heads(attention, plan.alignment_heads)
        num_vectors = max(window.num_samples * spec.num_tokens // spec.num_samples, 1)
        seconds = spec.window_seconds / spec.num_tokens

        def align() -> list[tuple[Word, ...]]:
            starts = token_starts(weights, len(plan.start_tokens(language)), num_vectors)
            return timed_words(
                segments,
                [math.exp(value) for value in text.logprobs],
                (window.start / spec.sample_rate + starts * seconds).round(DECIMALS).tolist(),
                plan.model.tokenizer,
                has_spaces=language not in LANGUAGES_WITHOUT_SPACES,
            )

        return await self.context.build(weights.size // 16, align, self.caller)

    async def _run(self, job: GenerationJob) -> _Output:
        handle = await self._submissions.submit(job)
        try:
            return await self._output(job, handle)
        finally:
            self.context.engine.cancel([handle])

    async def _output(self, job: GenerationJob, handle: JobHandle) -> _Output:
        """Awaits the whole output. If the language is unknown, the first token sets it."""
        name, metrics = self.plan.model.manifest.name, self.context.metrics
        clock = TokenClock(name, time.monotonic(), metrics)
        token_ids: tuple[int, ...] = ()
        logprobs: tuple[TokenLogprob, ...] = ()
        while True:
            update = await handle.next()
            error = None if update.completion is None else error_of(update.completion)
            if error is not None:
                raise error
            token_ids += update.tokens
            logprobs += update.logprobs
            if update.tokens:
                clock.add(update.token_times or [time.monotonic()] * len(update.tokens))
            if token_ids and not self.language.done():
                names = {id_: name for name, id_ in self.plan.languages.items()}
                self.language.set_result(names[token_ids[0]])
            if update.completion is not None:
                break
        self._count(job, update.completion, clock.num_tokens)
        is_cut = update.completion.outcome is Outcome.LENGTH
        return _Output(token_ids, logprobs, update.prompt, is_cut)

    def _count(self, job: GenerationJob, completion: Completion, num_tokens: int) -> None:
        name, metrics = self.plan.model.manifest.name, self.context.metrics
        num_forced = min(self.plan.num_forced_tokens, num_tokens)
        num_inputs = job.num_source_tokens + len(job.prompt) + num_forced
        num_outputs = num_tokens - num_forced
        metrics.on_phases(
            name, completion.queue_seconds, completion.prefill_seconds, completion.decode_seconds
        )
        metrics.on_tokens(name, num_inputs, num_outputs)
        self.completions.append(completion)
        self.usage = Usage.total([self.usage, Usage(num_inputs, num_outputs)])

    def _text_of(self, output: _Output, temperature: float) -> WindowText:
        plan, start = self.plan, self.plan.num_forced_tokens
        values = [value.logprob for value in output.logprobs[start:]]
        generated, eos = output.token_ids[start:], min(plan.job.eos)
        said = [id_ for id_ in generated if id_ < eos]
        return WindowText(
            tuple(id_ for id_ in generated if id_ < eos or id_ >= plan.tokens.first_timestamp),
            tuple(value for id_, value in zip(generated, values, strict=True) if id_ < eos),
            output.is_cut,
            sum(values) / max(len(values), 1),
            compression_ratio(plan.model.tokenizer.decode(said).strip()),
            plan.no_speech_probability(output.prompt.first_logprobs),
            temperature,
        )

    def _segments(
        self,
        text: WindowText,
        divided: Sequence[TokenSegment],
        words: Sequence[tuple[Word, ...]],
        start_seconds: float,
    ) -> tuple[Segment, ...]:
        """The non-empty segments of a window that starts at ``start_seconds``."""
        tokenizer = self.plan.model.tokenizer
        segments = []
        for (token_ids, start, end), own in zip(divided, words, strict=True):
            spoken = tokenizer.decode(token_ids)
            if not spoken.strip():
                continue
            segment = Segment(
                text=spoken,
                start_seconds=round(start_seconds + start, DECIMALS),
                end_seconds=round(start_seconds + end, DECIMALS),
                token_ids=token_ids,
                mean_logprob=text.mean_logprob,
                compression_ratio=text.compression_ratio,
                no_speech_probability=text.no_speech_probability,
                temperature=text.temperature,
                words=own,
            )
            segments.append(segment)
        return tuple(segments)
