"""Results of ``generate``, ``translate``, ``score`` and ``tokenize``, without gRPC types.

Outputs are in the order of the inputs. Log-probabilities are natural logarithms.
"""

from dataclasses import dataclass
from enum import StrEnum

from client.tools import ToolCall


class FinishReason(StrEnum):
    """Why an output ended."""

    STOP = "stop"
    """It reached an end-of-sequence or stop token."""
    LENGTH = "length"
    """It reached ``max_new_tokens`` or the model's length limit."""
    STOP_STRING = "stop_string"
    DEADLINE = "deadline"
    """It stopped at ``max_seconds`` or shortly before the call's deadline; it is partial."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Token counts of a request."""

    input_tokens: int
    """Special tokens included."""
    output_tokens: int
    """End-of-sequence tokens included; 0 for encoders."""
    reused_tokens: int
    """Input tokens found in the server's prefix cache."""
    reasoning_tokens: int = 0
    """Output tokens before the answer, if ``separate_reasoning`` was set."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reused_tokens=self.reused_tokens + other.reused_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Durations of a request's phases, in seconds; each is the longest over all inputs."""

    queue_seconds: float
    """From admission to the first model run."""
    tokenize_seconds: float
    prefill_seconds: float
    """Model runs until the first token; for encoders, the whole model run."""
    decode_seconds: float
    """From the first token to the last."""
    total_seconds: float

    def __add__(self, other: "Timing") -> "Timing":
        """The times of two requests that ran one after the other."""
        return Timing(
            queue_seconds=self.queue_seconds + other.queue_seconds,
            tokenize_seconds=self.tokenize_seconds + other.tokenize_seconds,
            prefill_seconds=self.prefill_seconds + other.prefill_seconds,
            decode_seconds=self.decode_seconds + other.decode_seconds,
            total_seconds=self.total_seconds + other.total_seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """A token and its log-probability."""

    token_id: int
    token: str
    """The token as the vocabulary spells it."""
    logprob: float
    top: tuple["TokenLogprob", ...] = ()
    """The most likely tokens at this step, best first; empty unless ``top_logprobs`` was set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One of several outputs for the same input."""

    text: str
    token_ids: tuple[int, ...]
    """Empty unless ``token_ids`` was set."""
    finish_reason: FinishReason | None
    score: float | None = None
    """With beam search: the summed log-probability after the length penalty."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each generated token; empty unless ``logprobs`` was set."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of tools; ``text`` is without them."""
    reasoning: str = ""
    """What the model thought before ``text``, if ``separate_reasoning`` was set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionMatrix:
    """The weights of one head; ``layer`` and ``head`` are -1 for a mean."""

    layer: int
    head: int
    weights: tuple[tuple[float, ...], ...]
    """``[target tokens, source tokens]``."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Aligned ranges of characters in the source and in the output; ends are exclusive."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Attention weights of an output, and the tokens of source and target."""

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    matrices: tuple[AttentionMatrix, ...]
    alignments: tuple[Alignment, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(Hypothesis):
    """The output for one input: the best hypothesis, and all hypotheses."""

    usage: Usage
    """The sum over all hypotheses."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """One for each prompt token except the first; empty unless ``prompt_logprobs`` was set."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """All hypotheses, best first; empty unless ``num_hypotheses`` was more than 1."""
    attention: Attention | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of one output of a stream; an output's pieces, joined, are its text.

    Only the last piece of an output has ``finish_reason``, ``usage`` (of that output) and
    ``timing``.
    """

    model: str
    index: int
    """Index of the input that this output belongs to."""
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    usage: Usage | None
    timing: Timing | None
    hypothesis: int = 0
    """Index of the hypothesis among those of the input."""
    logprobs: tuple[TokenLogprob, ...] = ()
    score: float | None = None
    """With beam search, on the last piece."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """On the last piece of an input's first hypothesis, if ``prompt_logprobs`` was set."""
    attention: Attention | None = None
    """On the last piece of an input's first hypothesis, if ``attention`` was set."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of tools that ended in this piece."""
    reasoning: str = ""
    """The next part of what the model thinks before the text, if ``separate_reasoning`` was set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenization:
    """The tokens of one text."""

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The fields that every result has. ``usage`` and ``timing`` cover the whole request."""

    model: str
    usage: Usage
    timing: Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class TextResult(Result):
    """The result of ``generate`` and ``translate``."""

    outputs: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """The log-probability of a target, given its context."""

    score: float
    """The sum of the target tokens' log-probabilities."""
    num_tokens: int
    """Number of target tokens that were scored."""
    logprobs: tuple[TokenLogprob, ...]
    """One for each scored token; empty unless ``logprobs`` was set."""
    usage: Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreResult(Result):
    """The result of ``score``."""

    outputs: tuple[Scored, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeResult(Result):
    """The result of ``tokenize``."""

    outputs: tuple[Tokenization, ...]
