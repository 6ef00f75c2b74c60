"""A generated sequence: its tokens, how many of them are cached, and its phase."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from server.constraint import Constraint, Floats
from server.engine.decoding.logits_processors import (
    LogitsEdit,
    LogitsProcessor,
    TokenHistory,
    logits_processors,
)
from server.engine.decoding.options import NO_LOGPROBS
from server.engine.decoding.sampling import TokenLogprob
from server.engine.drafts import Drafter
from server.engine.requests.job import JOIN_SECONDS, Delivery, GenerationJob
from server.engine.requests.lifecycle import Event, Outcome, Phase, advance, has_ended


class LogitsNeed(Enum):
    """What the choice of a sequence's next token needs, as the methods of ``Logits`` return it."""

    BEST = auto()
    """The likeliest token."""
    TOP = auto()
    """The likeliest tokens and their log-probabilities."""
    ROWS = auto()
    """All logits: the sequence samples, or has processors or a constraint."""


@dataclass(slots=True, eq=False)
class Unpublished:
    """Generated tokens, with their log-probabilities if the job wants them, and selection times."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, token: int, logprobs: Sequence[TokenLogprob], now: float) -> None:
        self.tokens.append(token)
        self.logprobs += logprobs
        self.times.append(now)

    def take(self) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...], tuple[float, ...]]:
        """Removes and returns all tokens, log-probabilities and times."""
        taken = tuple(self.tokens), tuple(self.logprobs), tuple(self.times)
        self.tokens.clear()
        self.logprobs.clear()
        self.times.clear()
        return taken


@dataclass(slots=True, eq=False)
class DecodingSequence:
    """One output or hypothesis of a job. It owns a slot while it runs. For the lane's thread only.

    Attributes:
        id: unique among the sequences of a worker.
        job: the job to which its output belongs.
        deadline: the earlier of the job's ``deadline`` and ``finish_by``, in seconds.
        logits_need: what the choice of its next token needs of its logits.
        allows_multi_step: whether its tokens are all argmaxes, and published together at the end.
        drafter: drafts its next tokens while it runs alone; None in a fork, and after a draft whose
            run failed.
        output: the index of its output in the job.
        generator: draws random numbers for sampling; None if greedy.
        constraint: the state of its grammar; None without one.
        logits_processors: change its logits before a token is selected.
        phase: see :mod:`server.engine.requests.lifecycle`.
        tokens: the prompt's tokens, then the generated ones.
        num_cached_tokens: how many leading ``tokens`` have keys and values in the slot.
        num_reserved_slots: slots kept free for the sequences that will fork from it.
        image_vectors: ``[tokens, size]`` by index in the job's images, until the prompt is
            prefilled.
        prompt_keys: :attr:`GenerationJob.prefix_keys` of a job with images; None without.
        unpublished: its latest tokens, not yet in an update.
        last_published: when its tokens were last published, in the engine's clock (seconds).
    """

    id: int
    job: GenerationJob
    deadline: float | None
    logits_need: LogitsNeed
    allows_multi_step: bool = False
    drafter: Drafter | None = None
    output: int = 0
    generator: np.random.Generator | None = None
    constraint: Constraint | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    phase: Phase = Phase.WAITING
    tokens: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_reserved_slots: int = 0
    image_vectors: dict[int, Floats] = field(default_factory=dict)
    prompt_keys: Sequence[int] | None = None
    unpublished: Unpublished = field(default_factory=Unpublished)
    last_published: float = -math.inf

    @classmethod
    def first_of(cls, id_: int, job: GenerationJob) -> "DecodingSequence":
        """Makes the sequence that prefills the prompt. It reserves the slots of its forks."""
        processors = logits_processors(job.logits_options, job.eos, job.source or job.prompt)
        limits = [time for time in (job.finish_by, job.deadline) if time is not None]
        need = LogitsNeed.ROWS
        if job.sampling.is_greedy and not processors and job.constraint is None:
            has_logprobs = job.logprob_options.top_logprobs is not None
            need = LogitsNeed.TOP if has_logprobs else LogitsNeed.BEST
        return cls(
            id_,
            job,
            deadline=min(limits, default=None),
            logits_need=need,
            allows_multi_step=(
                need is LogitsNeed.BEST
                and job.is_single
                and job.max_new_tokens > 0
                and job.delivery is Delivery.WHOLE
                and job.logprob_options == NO_LOGPROBS
                and job.attention is None
                # The run over the last token of an image takes its vector.
                and not (job.images and job.images[-1].stop == len(job.prompt))
            ),
            drafter=Drafter(job.source),
            generator=_generator(job, 0),
            constraint=None if job.constraint is None else job.constraint.fork(),
            logits_processors=processors,
            tokens=list(job.prompt),
            num_reserved_slots=job.num_sequences - 1,
            prompt_keys=job.prefix_keys if job.images else None,
        )

    def fork(self, id_: int, output: int) -> "DecodingSequence":
        """Copies the sequence for output ``output``. The copy needs a slot with equal content."""
        return DecodingSequence(
            id_,
            self.job,
            self.deadline,
            self.logits_need,
            output=output,
            generator=_generator(self.job, output),
            constraint=None if self.constraint is None else self.constraint.fork(),
            logits_processors=self.logits_processors,
            phase=self.phase,
            tokens=list(self.tokens),
            num_cached_tokens=self.num_cached_tokens,
            prompt_keys=self.prompt_keys,
        )

    @property
    def cache_scope(self) -> str:
        return self.job.prefix_scope

    @property
    def prefills_alone(self) -> bool:
        return self.job.prefills_alone

    @property
    def prefix_keys(self) -> list[int]:
        """Its tokens as the prefix cache compares them: equal ones have equal keys and values."""
        if self.prompt_keys is None:
            return self.tokens
        return [*self.prompt_keys, *self.tokens[len(self.prompt_keys) :]]

    def missing_image(self, num_cached: int) -> int | None:
        """The first image without vectors that a prefill after ``num_cached`` tokens needs."""
        return next(
            (
                index
                for index, image in enumerate(self.job.images)
                if image.stop > num_cached and index not in self.image_vectors
            ),
            None,
        )

    @property
    def num_source_tokens(self) -> int:
        return self.job.num_source_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """The number of tokens that are not cached yet: 1 while decoding."""
        return len(self.tokens) - self.num_cached_tokens

    @property
    def num_generated_tokens(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def max_decode_runs(self) -> int:
        """How many tokens it may decode before the next plan: at least 1."""
        if not self.allows_multi_step:
            return 1
        return max(self.job.max_new_tokens - self.num_generated_tokens, 1)

    @property
    def is_live(self) -> bool:
        return not has_ended(self.phase)

    def early_outcome(self, now: float) -> Outcome | None:
        """How the sequence ends before its next step; None if it goes on.

        ``now``: the current time in the engine's clock (seconds).
        """
        if self.phase is Phase.CANCELLING:
            return Outcome.CANCELLED
        if self.deadline is None or self.deadline > now:
            return None
        finish_by = self.job.finish_by
        return (
            Outcome.TIME_LIMIT if finish_by is not None and finish_by <= now else Outcome.DEADLINE
        )

    def on(self, event: Event) -> None:
        """Moves to the next phase. Raises ``ValueError`` if ``event`` cannot happen now."""
        self.phase = advance(self.phase, event)

    @property
    def edits(self) -> list[LogitsEdit]:
        """The processors' edits of the next token's logits, in the order of application."""
        history = TokenHistory(self.tokens, len(self.job.prompt))
        edits = (process(history) for process in self.logits_processors)
        return [edit for edit in edits if edit is not None]

    @property
    def changes_logits(self) -> bool:
        """Whether :meth:`process_logits` changes anything."""
        return bool(self.logits_processors) or self.constraint is not None

    def process_logits(self, logits: Floats) -> None:
        """Applies all processors and the constraint to ``logits [vocabulary]``, in place."""
        for edit in self.edits:
            edit.apply(logits)
        if self.constraint is not None:
            self.constraint.mask(logits)

    def may_wait(self, now: float, *, is_busy: bool) -> bool:
        """Whether new tokens may be published later. ``is_busy``: whether many sequences run."""
        delivery = self.job.delivery
        if delivery is Delivery.STREAM:
            return is_busy and now < self.last_published + JOIN_SECONDS
        return delivery is Delivery.WHOLE

    @property
    def may_run_ahead(self) -> bool:
        """Whether the run over its next token may start before that token is known on the host.

        It is the argmax then, and not the last that ``max_new_tokens`` allows, and no search, fork
        or log-probability reads the logits.
        """
        num_generated = self.num_generated_tokens
        return (
            self.logits_need is LogitsNeed.BEST
            and self.job.is_single
            and num_generated + 1 < self.job.max_new_tokens
            and not (num_generated == 0 and self.job.logprob_options.first_token_ids)
        )

    def continues_with(self, likeliest: int) -> bool:
        """Whether it continues after its likeliest token, given :attr:`may_run_ahead`.

        A stop string may still end it.
        """
        return likeliest >= 0 and likeliest not in self.job.eos

    def append(self, token: int) -> Outcome | None:
        """Appends the next token. Returns the outcome if the sequence ends with it.

        Raises:
            ConstraintError: the constraint does not allow the token.
        """
        if self.phase is not Phase.DECODING:
            self.on(Event.TOKEN)
            self.image_vectors.clear()
        self.tokens.append(token)
        if token in self.job.eos:
            return Outcome.STOP
        if self.constraint is not None:
            self.constraint.advance(token)
        if self.num_generated_tokens >= self.job.max_new_tokens:
            return Outcome.LENGTH
        return None


def _generator(job: GenerationJob, output: int) -> np.random.Generator | None:
    if job.sampling.is_greedy:
        return None
    seed = job.sampling.seed
    return np.random.default_rng(None if seed is None else seed + output)
