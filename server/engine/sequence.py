"""What callers ask of an engine, what runs, and what callers are told."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from server.engine.lifecycle import Event, Outcome, Phase, advance

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. ``temperature`` 0 is greedy, ``top_k`` 0 keeps all tokens."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One sequence to generate.

    ``prompt`` holds the decoder's first token ids (at least one), ``source`` the
    encoder's (empty for a decoder-only model). ``deadline`` is in the engine's
    clock, in seconds.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    source: tuple[int, ...] = ()
    eos: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """One text to encode: at least one token id."""

    token_ids: tuple[int, ...]
    deadline: float | None = None


Job = GenerationJob | EncodingJob


@dataclass(frozen=True, slots=True)
class End:
    """How a sequence ended, and its times in seconds. ``failure`` only where it FAILED."""

    outcome: Outcome
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """News of one sequence: new token ids, or an encoder's vector ``[width]``; its end."""

    id: int
    tokens: tuple[int, ...] = ()
    vector: Floats | None = None
    end: End | None = None


@dataclass(slots=True)
class Times:
    """Seconds in the engine's clock."""

    submitted: float
    started: float | None = None
    first_token: float | None = None

    def end(self, outcome: Outcome, now: float, failure: str = "") -> End:
        started = now if self.started is None else self.started
        first = now if self.first_token is None else self.first_token
        return End(
            outcome=outcome,
            queue_seconds=started - self.submitted,
            prefill_seconds=first - started,
            decode_seconds=now - first,
            failure=failure,
        )


@dataclass(slots=True)
class Sequence:
    """A generation job with its state. Owned by one lane's thread.

    ``tokens`` are the decoder's: the prompt, then what was generated. The first
    ``num_cached_tokens`` of them are in the slot.
    """

    id: int
    job: GenerationJob
    times: Times
    generator: np.random.Generator | None = None
    phase: Phase = Phase.WAITING
    tokens: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    is_encoded: bool = False
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.job.prompt)
        self.is_encoded = not self.job.source

    @property
    def deadline(self) -> float | None:
        return self.job.deadline

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

    def on(self, event: Event) -> None:
        self.phase = advance(self.phase, event)

    def append(self, token: int) -> Outcome | None:
        """Takes the next token; returns the outcome if the sequence ends with it."""
        self.on(Event.TOKEN)
        self.tokens.append(token)
        if token in self.job.eos:
            return Outcome.STOP
        if self.num_generated_tokens >= self.job.max_new_tokens:
            return Outcome.LENGTH
        return None
