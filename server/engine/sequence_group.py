"""A job with its sequences, and the last updates of its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from server.constraint import Floats
from server.engine.decoding.beam import BeamSearch, Hypothesis
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NO_TOKEN
from server.engine.requests.job import GenerationJob, TextEnd
from server.engine.requests.lifecycle import Ending, Outcome
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import (
    NO_PROMPT_OUTPUT,
    JobTimes,
    JobUpdate,
    PromptOutput,
)


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """A job and its sequences.

    Attributes:
        id: the id of the job.
        sequences: the sequences that have not ended; with a search, in the order of its live
            hypotheses.
        search: the beam search; None without one.
        is_independent: whether each sequence is one output: all samples have forked, and there is
            no search.
        num_live_outputs: the number of outputs that have not ended.
        num_published_tokens: how many tokens of the search's best hypothesis were published.
        agreed_times: for each token that all hypotheses share, when they agreed on it.
        text_end: finds a stop string in these tokens; None without a search or a stop string.
        num_reused_tokens: the number of prompt tokens copied from a cached prefix.
        attention: the weights ``[layers, heads, source]`` of each token.
    """

    id: int
    job: GenerationJob
    times: JobTimes
    sequences: list[DecodingSequence]
    search: BeamSearch | None
    is_independent: bool
    num_live_outputs: int
    num_published_tokens: int = 0
    agreed_times: list[float] = field(default_factory=list)
    text_end: TextEnd | None = None
    num_reused_tokens: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    first_logprobs: tuple[float, ...] = ()
    attention: list[Floats] = field(default_factory=list)

    @classmethod
    def of(cls, id_: int, first: DecodingSequence, submitted: float) -> "SequenceGroup":
        """Makes the group of a job, with the sequence that will prefill its prompt."""
        job, search = first.job, None
        if job.beams is not None and job.max_new_tokens:
            search = BeamSearch(job.beams, job.eos, job.max_new_tokens)
        return cls(
            id_,
            job,
            JobTimes(submitted),
            [first],
            search,
            is_independent=job.num_sequences == 1 and search is None,
            num_live_outputs=job.num_outputs,
            text_end=None if search is None or job.text_end is None else job.text_end(),
        )

    def agree(self, tokens: Sequence[int], now: float) -> int | None:
        """Records that all hypotheses of the search continue with ``tokens``.

        Returns:
            The length of the output if one of the tokens completes a stop string; else None.
        """
        for token in tokens:
            self.agreed_times.append(now)
            if self.text_end is not None and self.text_end(token):
                return len(self.agreed_times)
        return None

    def end_output(self, sequence: DecodingSequence, ending: Ending, now: float) -> JobUpdate:
        """Ends the output of an independent sequence.

        Returns:
            Its last update, with the tokens that were not published.
        """
        tokens, logprobs, times = sequence.unpublished.take()
        return self._end(sequence.output, ending, now, tokens, logprobs, times)

    def end_outputs(self, ending: Ending, now: float) -> list[JobUpdate]:
        """Ends every output that has not ended. Returns their last updates."""
        if self.is_independent:
            return [self.end_output(sequence, ending, now) for sequence in self.sequences]
        self.num_live_outputs = self.job.num_outputs
        if self.search is not None and ending.outcome in {Outcome.STOP, Outcome.TIME_LIMIT}:
            hypotheses = self.search.best(self.job.num_outputs)
            if hypotheses:  # a constraint may allow fewer than the job wants
                self.num_live_outputs = len(hypotheses)
                return [
                    self._end_hypothesis(self.search, output, hypothesis, now)
                    for output, hypothesis in enumerate(hypotheses)
                ]
            if self.search.is_over:
                self.num_live_outputs, ending = 1, NO_TOKEN
        return [self._end(output, ending, now) for output in range(self.num_live_outputs)]

    def _end_hypothesis(
        self, search: BeamSearch, output: int, hypothesis: Hypothesis, now: float
    ) -> JobUpdate:
        """Ends an output of a search; the first has only its tokens that were not published."""
        published = 0 if output else self.num_published_tokens
        tokens, values = hypothesis.tokens[published:], hypothesis.logprobs[published:]
        if self.job.logprob_options.top_logprobs is None:
            values = ()
        outcome = Outcome.STOP
        if hypothesis.tokens[-1] not in self.job.eos:
            is_full = len(hypothesis.tokens) >= self.job.max_new_tokens
            outcome = Outcome.LENGTH if is_full or search.is_over else Outcome.TIME_LIMIT
        logprobs = tuple(map(TokenLogprob, values))
        agreed = () if output else self.agreed_times[published:]
        times = (*agreed, *[now] * (len(tokens) - len(agreed)))
        score = hypothesis.score
        return self._end(output, Ending(outcome), now, tokens, logprobs, times, score)

    def _end(
        self,
        output: int,
        ending: Ending,
        now: float,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        times: tuple[float, ...] = (),
        score: float | None = None,
    ) -> JobUpdate:
        """Ends one output. Returns its last update."""
        self.num_live_outputs -= 1
        return JobUpdate(
            self.id,
            tokens,
            output,
            logprobs,
            times,
            completion=self.times.complete(ending, now, self.num_reused_tokens),
            has_more=self.num_live_outputs > 0,
            score=score,
            prompt=self._prompt_output,
        )

    @property
    def _prompt_output(self) -> PromptOutput:
        if not (self.prompt_logprobs or self.first_logprobs or self.attention):
            return NO_PROMPT_OUTPUT
        attention = np.stack(self.attention) if self.attention else None
        return PromptOutput(tuple(self.prompt_logprobs), self.first_logprobs, attention)
