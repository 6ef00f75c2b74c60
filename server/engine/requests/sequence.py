"""What callers ask of an engine, what runs, and what callers are told."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from server.engine.decoding.logits_processors import (
    Constraint,
    LogitsEdit,
    LogitsProcessor,
    TokenHistory,
    logits_processors,
)
from server.engine.decoding.options import (
    GREEDY,
    NO_LOGPROBS,
    NO_PROCESSORS,
    Beams,
    LogitsOptions,
    LogprobOptions,
    Sampling,
)
from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.lifecycle import Event, Outcome, Phase, advance

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Cost:
    """What is asked for: slots, and tokens that are read or generated, at most."""

    num_rows: int
    num_tokens: int
    num_new_tokens: int = 0  # of num_tokens, those to generate

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.num_rows + other.num_rows,
            self.num_tokens + other.num_tokens,
            self.num_new_tokens + other.num_new_tokens,
        )

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(
            self.num_rows - other.num_rows,
            self.num_tokens - other.num_tokens,
            self.num_new_tokens - other.num_new_tokens,
        )


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One prompt or source, and what to generate after it.

    ``prompt`` holds the decoder's first token ids (at least one), ``source`` the
    encoder's (empty for a decoder-only model). ``max_new_tokens`` 0 only reads the prompt.
    ``deadline`` and ``finish_by`` are in the engine's clock, in seconds: after the first nobody
    waits any more, at the second what there is is the output.

    ``num_outputs`` sequences are generated after one prompt: samples, each with its own
    generator (``seed + index``); with ``alternatives``, one for each of the likeliest first
    tokens; with ``beams``, the best hypotheses of one search. A higher ``priority`` is
    served earlier.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    source: tuple[int, ...] = ()
    eos: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    logits_options: LogitsOptions = NO_PROCESSORS
    beams: Beams | None = None
    num_outputs: int = 1
    alternatives: bool = False
    constraint: Constraint | None = None
    logprob_options: LogprobOptions = NO_LOGPROBS
    priority: int = 0
    deadline: float | None = None
    finish_by: float | None = None

    @property
    def num_rows(self) -> int:
        """Slots that it needs at most."""
        return self.num_outputs if self.beams is None else self.beams.size

    @property
    def cost(self) -> Cost:
        num_new = self.num_rows * self.max_new_tokens
        return Cost(self.num_rows, len(self.source) + len(self.prompt) + num_new, num_new)


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """One text to encode: at least one token id.

    ``segment_ids``: all 0 if empty. ``logit_positions``: the tokens to find words for, of a
    model that fills masks. ``wants_tokens``: the vector of each token of an embedding model.
    ``is_bulk``: it has time, others may overtake it.
    """

    token_ids: tuple[int, ...]
    segment_ids: tuple[int, ...] = ()
    logit_positions: tuple[int, ...] = ()
    wants_tokens: bool = False
    is_bulk: bool = False
    deadline: float | None = None

    @property
    def num_rows(self) -> int:
        return 1

    @property
    def cost(self) -> Cost:
        return Cost(1, len(self.token_ids))


Job = GenerationJob | EncodingJob


@dataclass(frozen=True, slots=True)
class Completion:
    """How an output ended, and its times in seconds. ``failure`` says what went wrong."""

    outcome: Outcome
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    failure: str = ""
    num_reused_tokens: int = 0

    @property
    def is_success(self) -> bool:
        """Whether it ran to an end of its own."""
        return self.outcome in {Outcome.STOP, Outcome.LENGTH, Outcome.DONE}


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """News of a job: of one output, new token ids or what an encoder gives; its end.

    ``vector`` is ``[width]``, or ``[length, width]`` of a model that gives each token one, or
    ``[positions, vocabulary]``. ``token_vectors [length, width]`` only if they were wanted.
    ``logprobs`` are those of ``tokens``, if the job wants them. ``prompt_logprobs`` come
    once: those of the prompt's tokens but the first. ``score`` is a beam search's.
    ``attention [tokens, layers, heads, source]`` comes with the end, if the job wants it.
    ``token_times``: when each token was known (``time.monotonic``, seconds); empty means now.
    ``has_more``: other outputs of the job go on after this one's end.
    """

    id: int
    tokens: tuple[int, ...] = ()
    vector: Floats | None = None
    token_vectors: Floats | None = None
    completion: Completion | None = None
    output: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    score: float | None = None
    attention: Floats | None = None
    token_times: tuple[float, ...] = ()
    has_more: bool = False

    @property
    def is_last(self) -> bool:
        """Whether nothing more will be said of the job."""
        return self.completion is not None and not self.has_more


@dataclass(slots=True)
class JobTimes:
    """Seconds in the engine's clock."""

    submitted: float
    started: float | None = None
    first_token: float | None = None

    def end(
        self, outcome: Outcome, now: float, failure: str = "", num_reused_tokens: int = 0
    ) -> Completion:
        started = now if self.started is None else self.started
        first = now if self.first_token is None else self.first_token
        return Completion(
            outcome=outcome,
            queue_seconds=started - self.submitted,
            prefill_seconds=first - started,
            decode_seconds=now - first,
            failure=failure,
            num_reused_tokens=num_reused_tokens,
        )


@dataclass(slots=True, eq=False)
class DecodingSequence:
    """A row of the cache: one hypothesis of a job. Owned by one lane's thread.

    ``tokens`` are the decoder's: the prompt, then what was generated. The first
    ``num_cached_tokens`` of them are in the slot.
    """

    id: int
    job: GenerationJob
    output: int = 0
    generator: np.random.Generator | None = None
    constraint: Constraint | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    phase: Phase = Phase.WAITING
    tokens: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_reserved_rows: int = 0
    is_encoded: bool = False
    is_cancelled: bool = False
    is_failed: bool = False  # its slot may hold what is not finite

    @classmethod
    def first_of(cls, id_: int, job: GenerationJob) -> "DecodingSequence":
        """The row that reads the prompt; it reserves those that will come of it."""
        return cls(
            id_,
            job,
            generator=_generator(job, 0),
            constraint=None if job.constraint is None else job.constraint.fork(),
            logits_processors=logits_processors(job.logits_options, job.eos),
            tokens=list(job.prompt),
            num_reserved_rows=job.num_rows - 1,
            is_encoded=not job.source,
        )

    def fork(self, id_: int, output: int) -> "DecodingSequence":
        """Another row with the same content, for output ``output`` of the job."""
        return DecodingSequence(
            id_,
            self.job,
            output=output,
            generator=_generator(self.job, output),
            constraint=None if self.constraint is None else self.constraint.fork(),
            logits_processors=self.logits_processors,
            phase=self.phase,
            tokens=list(self.tokens),
            num_cached_tokens=self.num_cached_tokens,
            is_encoded=True,
            is_cancelled=self.is_cancelled,
        )

    @property
    def deadline(self) -> float | None:
        """When it leaves, whoever set that."""
        return min(
            (at for at in (self.job.finish_by, self.job.deadline) if at is not None), default=None
        )

    @property
    def num_source_tokens(self) -> int:
        return len(self.job.source)

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens that the model has not read yet: 1 while decoding."""
        return len(self.tokens) - self.num_cached_tokens

    @property
    def num_generated_tokens(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def is_plainly_greedy(self) -> bool:
        """Whether the likeliest token comes next, whatever was before."""
        return (
            self.job.sampling.is_greedy and not self.logits_processors and self.constraint is None
        )

    def on(self, event: Event) -> None:
        self.phase = advance(self.phase, event)

    @property
    def changes(self) -> list[LogitsEdit]:
        """What the options change of the next token's logits, in the order it applies."""
        tokens = TokenHistory(self.tokens, len(self.job.prompt))
        changes = (adjust(tokens) for adjust in self.logits_processors)
        return [change for change in changes if change is not None]

    def adjust(self, logits: Floats) -> None:
        """Applies everything that changes the logits ``[vocabulary]`` of the next token."""
        for change in self.changes:
            change.apply(logits)
        if self.constraint is not None:
            self.constraint.mask(logits)

    def append(self, token: int) -> Outcome | None:
        """Takes the next token; returns the outcome if the sequence ends with it."""
        self.on(Event.TOKEN)
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
