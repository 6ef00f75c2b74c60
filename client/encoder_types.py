"""What the calls to encoders take and give: frozen values that know nothing of gRPC.

Positions in a text count its characters, as Python does: ``text[start:end]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from client.types import Result, Timing, Usage


class LongInput(StrEnum):
    """What happens to a text that has more tokens than the model reads."""

    ERROR = "error"
    TRUNCATE_RIGHT = "truncate_right"
    TRUNCATE_LEFT = "truncate_left"
    WINDOWS = "windows"


class EncodingFormat(StrEnum):
    """How vectors travel."""

    FLOAT = "float"
    FLOAT32_BYTES = "float32_bytes"
    FLOAT16_BYTES = "float16_bytes"


class Aggregation(StrEnum):
    """How tokens become entities."""

    NONE = "none"
    SIMPLE = "simple"
    FIRST = "first"
    AVERAGE = "average"
    MAX = "max"


class ScoreFunction(StrEnum):
    """From logits to scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"


class LengthOptions(TypedDict, total=False):
    """How long inputs are read. What is left out, the server decides."""

    long_input: LongInput | None
    max_tokens: int | None
    stride: int | None
    """Tokens that neighbouring windows share."""
    version: str
    """A version of the model; the newest if left out."""


class EmbedOptions(LengthOptions, total=False):
    encoding_format: EncodingFormat
    """32-bit bytes if left out: exact, and the fastest."""
    dimensions: int | None
    normalize: bool | None
    prompt_name: str | None
    prompt: str | None
    token_embeddings: bool | None


class ClassifyOptions(LengthOptions, total=False):
    top_k: int | None
    score_function: ScoreFunction | None


class TagOptions(LengthOptions, total=False):
    aggregation: Aggregation | None
    ignored_labels: Sequence[str]
    min_score: float | None


class FillMaskOptions(LengthOptions, total=False):
    top_k: int | None
    targets: Sequence[str]


class AnswerOptions(LengthOptions, total=False):
    top_k: int | None
    max_answer_tokens: int | None
    allow_no_answer: bool | None


class RerankOptions(LengthOptions, total=False):
    top_n: int | None
    return_documents: bool | None
    score_function: ScoreFunction | None
    query_prompt_name: str | None
    document_prompt_name: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What was done to an input because of its length."""

    truncated_tokens: int
    windows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEmbedding:
    """The vector of one token; a special one has no characters."""

    token: str
    start: int
    end: int
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    values: tuple[float, ...]
    usage: Usage
    reading: Reading
    tokens: tuple[TokenEmbedding, ...] = ()
    """Only if they were asked for."""


@dataclass(frozen=True, slots=True)
class LabelScore:
    label: str
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Classification:
    labels: tuple[LabelScore, ...]
    """Likeliest first."""
    usage: Usage
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    """``text`` is the input from ``start`` to ``end``."""

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tagging:
    entities: tuple[Entity, ...]
    """In the order of the text."""
    usage: Usage
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskCandidate:
    text: str
    token_id: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FilledMask:
    start: int
    end: int
    candidates: tuple[MaskCandidate, ...]
    """Likeliest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskFilling:
    masks: tuple[FilledMask, ...]
    """In the order of the text."""
    usage: Usage
    reading: Reading


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the text in which its answer is looked for."""

    question: str
    context: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSpan:
    """``text`` is the context from ``start`` to ``end``; empty if there is no answer."""

    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    spans: tuple[AnswerSpan, ...]
    """Likeliest first."""
    usage: Usage
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedDocument:
    index: int
    score: float
    document: str
    """Only if it was asked for."""
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedResult(Result):
    outputs: tuple[Embedding, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedBatch:
    """The answer to one batch of ``embed_stream``."""

    id: int
    model: str
    outputs: tuple[Embedding, ...]
    usage: Usage
    timing: Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyResult(Result):
    outputs: tuple[Classification, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TagResult(Result):
    outputs: tuple[Tagging, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FillMaskResult(Result):
    outputs: tuple[MaskFilling, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerResult(Result):
    outputs: tuple[Answers, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankResult(Result):
    """Best first, not in the order of the documents."""

    outputs: tuple[RankedDocument, ...]
