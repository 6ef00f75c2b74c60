"""A job and the rows that work on it: one for a plain output, several for samples or beams."""

from dataclasses import dataclass, field

import numpy as np

from server.engine.decoding.beam import BeamSearch
from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.lifecycle import Event, Outcome
from server.engine.requests.sequence import (
    DecodingSequence,
    Floats,
    GenerationJob,
    JobTimes,
    JobUpdate,
)


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """``rows`` are those that still run, in the order of a search's live hypotheses."""

    id: int
    job: GenerationJob
    times: JobTimes
    rows: list[DecodingSequence]
    search: BeamSearch | None = None
    has_branched: bool = False
    num_open_outputs: int = 0
    num_told_tokens: int = 0  # of the best hypothesis, while a search runs
    num_reused_tokens: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    attention: list[Floats] = field(default_factory=list)  # of each token [layers, heads, source]

    @classmethod
    def of(cls, id_: int, row: DecodingSequence, submitted: float) -> "SequenceGroup":
        job, search = row.job, None
        if job.beams is not None and job.max_new_tokens:
            search = BeamSearch(job.beams, job.eos, job.max_new_tokens)
        return cls(
            id_,
            job,
            JobTimes(submitted),
            [row],
            search=search,
            has_branched=job.num_rows == 1,
            num_open_outputs=job.num_outputs,
        )

    @property
    def is_plain(self) -> bool:
        """Whether each row goes its own way from here on."""
        return self.has_branched and self.search is None

    def end(
        self,
        row: DecodingSequence,
        outcome: Outcome,
        now: float,
        *,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        failure: str = "",
    ) -> JobUpdate:
        """Ends a plain row's output."""
        row.on(Event.END)
        row.is_failed = outcome == Outcome.FAILED
        self.rows.remove(row)
        return self._ended(row.output, outcome, now, tokens, logprobs, failure)

    def end_all(self, outcome: Outcome, now: float, failure: str = "") -> list[JobUpdate]:
        """Ends whatever is open, with nothing more to tell."""
        open_outputs = [row.output for row in self.rows]
        if not self.is_plain:
            open_outputs = list(range(self.job.num_outputs))
            self.num_open_outputs = len(open_outputs)
        for row in self.rows:
            row.on(Event.END)
            row.is_failed = outcome == Outcome.FAILED
        self.rows = []
        return [self._ended(output, outcome, now, failure=failure) for output in open_outputs]

    def end_search(self, now: float) -> list[JobUpdate]:
        """Tells the best hypotheses; of the first, what was not told yet.

        Those that did not end by themselves ran out of time.
        """
        if self.search is None:
            raise ValueError("this job has no search")
        hypotheses = self.search.best(self.job.num_outputs)
        if not hypotheses and not self.search.is_over:
            return self.end_all(Outcome.TIME_LIMIT, now)
        for row in self.rows:
            row.on(Event.END)
        self.rows = []
        if not hypotheses:
            return [self._ended(0, Outcome.UNSATISFIABLE, now, failure="no token is allowed")]
        self.num_open_outputs = len(hypotheses)  # a constraint may allow fewer than wanted
        updates = []
        for output, hypothesis in enumerate(hypotheses):
            told = self.num_told_tokens if output == 0 else 0
            tokens, values = hypothesis.tokens[told:], hypothesis.logprobs[told:]
            if self.job.logprob_options.top_logprobs is None:
                values = ()
            outcome = Outcome.STOP
            if hypothesis.tokens[-1] not in self.job.eos:
                is_full = len(hypothesis.tokens) >= self.job.max_new_tokens
                outcome = Outcome.LENGTH if is_full or self.search.is_over else Outcome.TIME_LIMIT
            logprobs = tuple(TokenLogprob(value) for value in values)
            updates.append(
                self._ended(output, outcome, now, tokens, logprobs, score=hypothesis.score)
            )
        return updates

    def _ended(
        self,
        output: int,
        outcome: Outcome,
        now: float,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        failure: str = "",
        score: float | None = None,
    ) -> JobUpdate:
        self.num_open_outputs -= 1
        return JobUpdate(
            self.id,
            tokens,
            completion=self.times.end(outcome, now, failure, self.num_reused_tokens),
            output=output,
            logprobs=logprobs,
            prompt_logprobs=tuple(self.prompt_logprobs),
            score=score,
            attention=np.stack(self.attention) if self.attention else None,
            has_more=self.num_open_outputs > 0,
        )
