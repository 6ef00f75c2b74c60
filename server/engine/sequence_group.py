"""A job with its sequences, and the last updates of its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from server.constraint import Floats
from server.engine.decoding.beam import BeamSearch
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NO_TOKEN
from server.engine.requests.job import GenerationJob, TextEnd
from server.engine.requests.lifecycle import Ending, Outcome
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import JobTimes


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

    def last_updates(self, ending: Ending, now: float) -> list["LastUpdate"]:
        """Returns every open output's last update when the job ends at ``now``."""
        if self.is_independent:
            return [last_update(sequence, ending) for sequence in self.sequences]
        if self.search is not None and ending.outcome in {Outcome.STOP, Outcome.TIME_LIMIT}:
            hypotheses = self._hypotheses(self.search, now)
            if hypotheses:  # a constraint may allow fewer than the job wants
                return hypotheses
            if self.search.is_over:
                return [LastUpdate(0, NO_TOKEN)]
        outputs = range(self.job.num_outputs)
        return [LastUpdate(output, ending) for output in outputs]

    def _hypotheses(self, search: BeamSearch, now: float) -> list["LastUpdate"]:
        """Returns the best hypotheses; the first has only its tokens that were not published."""
        updates = []
        for output, hypothesis in enumerate(search.best(self.job.num_outputs)):
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
            last = LastUpdate(output, Ending(outcome), tokens, logprobs, hypothesis.score, times)
            updates.append(last)
        return updates


class LastUpdate(NamedTuple):
    """The last tokens of an output, and how it ends."""

    output: int
    ending: Ending
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    score: float | None = None
    times: tuple[float, ...] = ()


def last_update(sequence: DecodingSequence, ending: Ending) -> LastUpdate:
    """Makes an independent sequence's last update, with all tokens that were not published."""
    tokens, logprobs, times = sequence.unpublished.take()
    return LastUpdate(sequence.output, ending, tokens, logprobs, times=times)
