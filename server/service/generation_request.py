"""Requests of Generate and Translate, and their results: stream chunks or whole outputs."""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from server.engine.decoding.options import LogitsOptions, Sampling
from server.engine.requests.update import Completion
from server.service.generation_options import (
    DecodingOptions,
    ResponseOptions,
    StoppingOptions,
)
from server.service.requests import ModelRequest
from server.service.usage import Timing, Usage
from server.text.chat import Message as Message  # noqa: PLC0414


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest(ModelRequest):
    """The fields that Generate and Translate share. A higher ``priority`` is served earlier."""

    inputs: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    logits: LogitsOptions = field(default_factory=LogitsOptions)
    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    stopping: StoppingOptions = field(default_factory=StoppingOptions)
    response: ResponseOptions = field(default_factory=ResponseOptions)
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest(GenerationRequest):
    """Exactly one of ``inputs``, ``token_inputs`` and ``messages`` is given."""

    token_inputs: tuple[tuple[int, ...], ...] = ()
    messages: tuple[Message, ...] = ()


class SentenceSplit(StrEnum):
    """Whether a text is translated sentence by sentence.

    ``AUTO``: if it has several sentences, no option needs the whole text, and the model does not
    read its task from the text. ``ON``: the request fails if an option needs the whole text.
    """

    AUTO = "auto"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateRequest(GenerationRequest):
    """Languages by the names in the model's manifest; empty for the default."""

    source_language: str = ""
    target_language: str = ""
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

    ``top``: the likeliest tokens in its place, likeliest first, if requested.
    """

    token_id: int
    token: str
    logprob: float
    top: tuple["ScoredToken", ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionMatrix:
    """``weights``: ``[target tokens, source tokens]`` of a head. Layer and head: -1 for a mean."""

    layer: int
    head: int
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Alignment:
    """A span of the output and the source span that it attends to most, in characters."""

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

    ``score``: with beam search, the summed log-probability after the length penalty.
    """

    reason: FinishReason
    usage: Usage
    timing: Timing
    completion: Completion
    score: float | None = None
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    attention: Attention | None = None


@dataclass(frozen=True, slots=True)
class TextChunk:
    """The next part of hypothesis ``hypothesis`` of input ``index``; the last one has ``finish``.

    ``token_ids``: empty unless requested. ``logprobs``: of the generated tokens, if requested.
    """

    model: str
    index: int
    hypothesis: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One of the output texts for an input."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ScoredToken, ...]
    finish: Finish


@dataclass(frozen=True, slots=True)
class GeneratedOutput:
    """The hypotheses for one input, best first, and their total usage.

    ``has_several``: whether the request asks for several hypotheses; a search may find fewer.
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
