"""Updates of a job's outputs, and how each output ended."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from server.constraint import Floats
from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.lifecycle import Ending, Outcome


class Completion(msgspec.Struct, frozen=True):
    """How an output ended, and its times in seconds. ``failure`` says what went wrong."""

    outcome: Outcome
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    failure: str = ""
    num_reused_tokens: int = 0

    @property
    def is_success(self) -> bool:
        """Whether the output is complete: no time limit, cancellation or failure cut it short."""
        return self.outcome in {Outcome.STOP, Outcome.LENGTH, Outcome.DONE}


class EncoderOutput(msgspec.Struct, frozen=True, eq=False):
    """An encoder's output for one text, image or window. It owns its memory.

    Attributes:
        vector: ``[width]``; ``[length, width]`` from a model with one vector per token;
            ``[positions, vocabulary]`` from a masked language model; or ``[words, max_width,
            labels]`` of spans. A sparse vector has its largest weights only.
        of_tokens: by name, the outputs with a row for each token that the job wants, ``[length]``
            or ``[length, width]``; those that the graph has.
        indices: for a sparse vector, the token ids of the weights in ``vector``, ascending.
        attention: weights ``[tokens, layers, heads, tokens]``, if the job wants them.
    """

    vector: Floats
    of_tokens: Mapping[str, Floats] = {}
    indices: npt.NDArray[np.int32] | None = None
    attention: Floats | None = None


class PromptOutput(msgspec.Struct, frozen=True, eq=False):
    """What the model computed of a prompt, besides the tokens after it.

    Attributes:
        logprobs: the log-probabilities of the prompt's tokens except the first.
        first_logprobs: those of the job's ``first_token_ids`` after the prompt.
        attention: weights ``[tokens, layers, heads, source]``.
    """

    logprobs: tuple[TokenLogprob, ...] = ()
    first_logprobs: tuple[float, ...] = ()
    attention: Floats | None = None


NO_PROMPT_OUTPUT = PromptOutput()


class JobUpdate(msgspec.Struct, frozen=True):
    """New tokens of one output of a job, or the end of an output with its last tokens.

    Attributes:
        id: the id of the job.
        tokens: new token ids.
        output: the index of the output in the job.
        logprobs: the log-probabilities of ``tokens``, if the job wants them.
        token_times: when each of ``tokens`` was chosen, in the engine's clock (seconds). In a beam
            search, when all hypotheses agreed on it.
        completion: how the output ended; None while it continues.
        has_more: whether other outputs of the job continue after this one has ended.
        score: in the last update, the score of a beam search's hypothesis.
        prompt: in the last update, what the job wants to know of its prompt.
        encoded: in the last update, the output of an encoder that succeeded.
    """

    id: int
    tokens: tuple[int, ...] = ()
    output: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    token_times: tuple[float, ...] = ()
    completion: Completion | None = None
    has_more: bool = False
    score: float | None = None
    prompt: PromptOutput = NO_PROMPT_OUTPUT
    encoded: EncoderOutput | None = None

    @property
    def is_last(self) -> bool:
        """Whether this is the last update of the job."""
        return self.completion is not None and not self.has_more


@dataclass(slots=True)
class JobTimes:
    """When a job was submitted, admitted and had its first token: seconds in the engine's clock."""

    submitted: float
    started: float | None = None
    first_token: float | None = None

    def complete(self, ending: Ending, now: float, num_reused_tokens: int = 0) -> Completion:
        """Returns the completion of an output that ends at ``now``."""
        started = now if self.started is None else self.started
        first = now if self.first_token is None else self.first_token
        return Completion(
            outcome=ending.outcome,
            queue_seconds=started - self.submitted,
            prefill_seconds=first - started,
            decode_seconds=now - first,
            failure=ending.failure,
            num_reused_tokens=num_reused_tokens,
        )
