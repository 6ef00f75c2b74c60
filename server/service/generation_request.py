"""Requests of Generate and Translate, and their results: stream chunks or whole outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from server.bounds import (
    INPUT_BYTES,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_MESSAGES,
    MAX_NAME_BYTES,
    MAX_TEXTS,
    MAX_TOKEN_IDS,
    bounded,
    ruled,
    sized,
)
from server.engine.decoding.options import LogitsOptions, Sampling
from server.engine.requests.update import Completion
from server.service.generation_options import (
    PRIORITIES,
    DecodingOptions,
    ResponseOptions,
    StoppingOptions,
)
from server.service.requests import ModelRequest
from server.service.usage import Timing, Usage
from server.text.chat import NO_OPTIONS
from server.text.chat import ChatOptions as ChatOptions  # noqa: PLC0414
from server.text.chat import ContentPart as ContentPart  # noqa: PLC0414
from server.text.chat import Message as Message  # noqa: PLC0414
from server.text.chat import ReasoningSupport as ReasoningSupport  # noqa: PLC0414
from server.text.chat import Tool as Tool  # noqa: PLC0414
from server.text.chat import ToolCall as ToolCall  # noqa: PLC0414
from server.text.chat import ToolChoice as ToolChoice  # noqa: PLC0414
from server.text.chat import json_object as json_object  # noqa: PLC0414


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest(ModelRequest):
    """The common fields of Generate and Translate. A higher ``priority`` is served earlier."""

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    sampling: Sampling = field(default_factory=Sampling)
    logits: LogitsOptions = field(default_factory=LogitsOptions)
    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    stopping: StoppingOptions = field(default_factory=StoppingOptions)
    response: ResponseOptions = field(default_factory=ResponseOptions)
    priority: int = bounded(0, PRIORITIES.low, PRIORITIES.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest(GenerationRequest):
    """A request of Generate with one of ``inputs``, ``token_inputs``, ``messages`` and ``images``.

    ``chat`` goes with ``messages``. ``images`` are files, for a model that reads images. With
    ``suffix``, the model writes what is between each of ``inputs`` and it.
    """

    token_inputs: tuple[tuple[int, ...], ...] = sized(
        (), max_items=MAX_TEXTS, max_total=MAX_TOKEN_IDS
    )
    messages: tuple[Message, ...] = sized((), max_items=MAX_MESSAGES)
    chat: ChatOptions = NO_OPTIONS
    images: tuple[bytes, ...] = sized((), max_items=MAX_IMAGES, max_bytes=MAX_IMAGE_BYTES)
    suffix: str = ruled("512 KiB, with every input, all together", "")


class SentenceSplit(StrEnum):
    """Whether a text is translated sentence by sentence.

    ``AUTO`` splits it if it has several sentences, no option needs the whole text, and the model
    does not read its task from the text. With ``ON``, the request fails if an option needs the
    whole text.
    """

    AUTO = "auto"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateRequest(GenerationRequest):
    """A request of Translate. Languages are names in the model's manifest; empty is the default."""

    source_language: str = sized("", max_bytes=MAX_NAME_BYTES)
    target_language: str = sized("", max_bytes=MAX_NAME_BYTES)
    sentence_split: SentenceSplit = SentenceSplit.AUTO


class FinishReason(StrEnum):
    """Why an output ended."""

    STOP = "stop"  # the end-of-sequence token
    LENGTH = "length"
    STOP_STRING = "stop_string"
    DEADLINE = "deadline"  # the request's time limit; the output is partial
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token, its spelling in the vocabulary, and its natural log-probability.

    ``top`` are the most likely tokens at its position, most likely first, if requested.
    """

    token_id: int
    token: str
    logprob: float
    top: tuple["ScoredToken", ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionMatrix:
    """The ``weights [target tokens, source tokens]`` of a head. A mean has layer and head -1."""

    layer: int
    head: int
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Alignment:
    """A span of the output, and the source span that it attends to most, in characters."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention weights of one output. Tokens are spelled as in the vocabulary."""

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    matrices: tuple[AttentionMatrix, ...]
    alignments: tuple[Alignment, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an output. Only the first hypothesis has ``prompt_logprobs`` and ``attention``.

    ``score`` is set by beam search: the summed log-probability after the length penalty.
    ``stop_string`` is the one that ended the text, if one did.
    """

    reason: FinishReason
    usage: Usage
    timing: Timing
    completion: Completion
    score: float | None = None
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    attention: Attention | None = None
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class TextChunk:
    """The next part of hypothesis ``hypothesis`` of input ``index``; the last one has ``finish``.

    ``token_ids`` and ``logprobs`` are empty unless requested. ``num_output_tokens`` counts the
    hypothesis so far. ``num_input_tokens`` is 0 except for the first hypothesis, as all share the
    input. With split sentences, both counts are those of the sentence. ``tool_calls`` are those
    that ended in this part. ``reasoning`` comes before ``text``; ``num_reasoning_tokens`` counts
    its tokens so far. The first part of the first hypothesis has ``input_ids``, those of the
    prompt or source, if token ids are requested.
    """

    model: str
    index: int
    hypothesis: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()
    finish: Finish | None = None
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    num_reasoning_tokens: int = 0
    input_ids: tuple[int, ...] = ()

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the chunk."""
        count = len(self.token_ids) + num_logprobs(self.logprobs) if self.logprobs else 0
        if self.finish is None:
            return count
        return count + num_logprobs(self.finish.prompt_logprobs) + _num_weights(self.finish) // 4


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One of the output texts for an input. The first has ``input_ids``, as :class:`TextChunk`."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ScoredToken, ...]
    finish: Finish
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    input_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratedOutput:
    """The hypotheses for one input, best first, and their total usage.

    ``has_several`` means that the request asks for several; beam search may find fewer.
    """

    hypotheses: tuple[Hypothesis, ...]
    usage: Usage
    has_several: bool


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The outputs of a request, in the order of its inputs."""

    model: str
    outputs: tuple[GeneratedOutput, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return sum(map(_num_values, self.outputs))


def _num_values(output: GeneratedOutput) -> int:
    finish = output.hypotheses[0].finish
    scored = [text.logprobs for text in output.hypotheses]
    return (
        4
        + sum(len(text.token_ids) + len(text.input_ids) for text in output.hypotheses)
        + num_logprobs(finish.prompt_logprobs)
        + sum(map(num_logprobs, scored))
        + _num_weights(finish) // 4
    )


def _num_weights(finish: Finish) -> int:
    if finish.attention is None:
        return 0
    return sum(matrix.weights.size for matrix in finish.attention.matrices)


def num_logprobs(tokens: Sequence[ScoredToken]) -> int:
    """Number of log-probabilities of ``tokens``, including those of their ``top`` tokens."""
    return sum(1 + len(token.top) for token in tokens)
