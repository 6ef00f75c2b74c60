"""Transcribes one window of a recording with an encoder (CTC, Graves et al. 2006)."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from model.audio import Samples
from model.ctc import TokenRun, token_runs
from server.engine.requests.update import Completion
from server.service.audio_windows import AudioWindow
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.ctc_plan import CtcPlan
from server.service.ctc_segments import MIN_PAUSE_SECONDS, Phrase, WordSpan, phrases
from server.service.follow_up import Submissions
from server.service.segments import compression_ratio
from server.service.transcription_request import Segment, Word
from server.service.transcription_window import DECIMALS
from server.service.usage import Usage, completion_of, encoder_output_of

Floats = npt.NDArray[np.float32]
# Reading this many logits costs 1: see :mod:`server.service.threads`.
_LOGITS_PER_UNIT = 256


@dataclass(slots=True)
class CtcCall:
    """The state of one call for all of its windows: see :class:`TranscriptionCall`."""

    plan: CtcPlan
    context: ServiceContext
    caller: Caller
    language: "asyncio.Future[str]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    completions: list[Completion] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    _submissions: Submissions = field(init=False)

    def __post_init__(self) -> None:
        self._submissions = Submissions(self.context, self.plan.model.key, self.caller.client)
        self.language.set_result(self.plan.language)

    @property
    def language_probability(self) -> float:
        return 1.0 if self.plan.language else 0.0

    async def transcribe(
        self, samples: Samples, window: AudioWindow, *, is_first: bool
    ) -> tuple[Segment, ...]:
        """Returns the segments of one window. ``is_first`` changes nothing.

        Raises:
            ServeError: the job failed, or the deadline passed.
        """
        del is_first
        job = self.plan.job_of(samples, window)
        handle = await self._submissions.submit(job)
        try:
            update = await handle.next()
        finally:
            self.context.engine.cancel([handle])
        completion, logits = completion_of(update), encoder_output_of(update).vector
        runs, segments = await self.context.build(
            logits.size // _LOGITS_PER_UNIT, partial(self._read, logits, window), self.caller
        )
        self._count(completion, job.num_tokens, len(runs))
        return segments

    def _count(self, completion: Completion, num_frames: int, num_tokens: int) -> None:
        name, metrics = self.plan.model.manifest.name, self.context.metrics
        metrics.on_phases(
            name, completion.queue_seconds, completion.prefill_seconds, completion.decode_seconds
        )
        metrics.on_tokens(name, num_frames, num_tokens)
        self.completions.append(completion)
        self.usage = Usage.total([self.usage, Usage(num_frames, num_tokens)])

    def _read(
        self, logits: Floats, window: AudioWindow
    ) -> tuple[list[TokenRun], tuple[Segment, ...]]:
        """The tokens and segments of ``logits [frames, vocabulary]``."""
        plan = self.plan
        runs = token_runs(logits.argmax(1), plan.tokens.blank)
        logprobs = _logprobs(logits, runs)
        frame_seconds = plan.hop_size / plan.audio.sample_rate
        divided = phrases(runs, plan.tokens.word_delimiter, MIN_PAUSE_SECONDS / frame_seconds)
        ratio = compression_ratio(self._text(runs).strip())
        mean = sum(logprobs) / max(len(logprobs), 1)
        segments = (
            self._segment(runs, logprobs, phrase, window, (mean, ratio)) for phrase in divided
        )
        return runs, tuple(segment for segment in segments if segment.text.strip())

    def _segment(
        self,
        runs: Sequence[TokenRun],
        logprobs: Sequence[float],
        phrase: Phrase,
        window: AudioWindow,
        quality: tuple[float, float],
    ) -> Segment:
        """A phrase. ``quality``: the window's mean log-probability and compression ratio."""
        first, last = phrase.words[0], phrase.words[-1]
        start, end = self._times(runs, WordSpan(first.start, last.stop), window)
        words = phrase.words if self.plan.has_words else []
        # The delimiters before a phrase are those after the one before it.
        text = self._text(runs[phrase.text.start : phrase.text.stop])
        return Segment(
            text=text if text.startswith(" ") else self._space + text,
            start_seconds=start,
            end_seconds=end,
            token_ids=tuple(run.token for run in runs[first.start : last.stop]),
            mean_logprob=quality[0],
            compression_ratio=quality[1],
            no_speech_probability=0.0,
            temperature=0.0,
            words=tuple(self._word(runs, logprobs, word, window) for word in words),
        )

    def _word(
        self,
        runs: Sequence[TokenRun],
        logprobs: Sequence[float],
        word: WordSpan,
        window: AudioWindow,
    ) -> Word:
        start, end = self._times(runs, word, window)
        values = [math.exp(value) for value in logprobs[word.start : word.stop]]
        text = self._space + self._text(runs[word.start : word.stop])
        return Word(text, start, end, sum(values) / len(values))

    def _times(
        self, runs: Sequence[TokenRun], span: WordSpan, window: AudioWindow
    ) -> tuple[float, float]:
        """Start and end of the runs of ``span``, in seconds from the start of the recording."""
        frames = (runs[span.start].start, runs[span.stop - 1].stop)
        start, end = (round(self.plan.seconds(window, frame), DECIMALS) for frame in frames)
        return start, end

    def _text(self, runs: Sequence[TokenRun]) -> str:
        return self.plan.model.tokenizer.decode([run.token for run in runs])

    @property
    def _space(self) -> str:
        """Before a word; empty if the model does not divide words."""
        return "" if self.plan.tokens.word_delimiter is None else " "


def _logprobs(logits: Floats, runs: Sequence[TokenRun]) -> list[float]:
    """The mean log-probability of each run's token over its frames."""
    largest = logits.max(1)
    # The best token's logit is the largest, so its log-probability is minus this.
    excess = np.log(np.exp(logits - largest[:, None]).sum(1))
    return [-float(excess[run.start : run.stop].mean()) for run in runs]
