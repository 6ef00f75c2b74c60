"""Results of the encoder calls: frozen dataclasses without gRPC types.

Outputs are in the order of the inputs unless stated otherwise. Positions in a text count its
characters (Unicode code points), as Python does: ``text[start:end]``.
"""

from dataclasses import dataclass

from client.results import Attention, AttentionMatrix, Result, Timing, Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How an input was truncated or split because of its length."""

    truncated_tokens: int
    """Tokens that were dropped."""
    windows: int
    """Number of windows; 1 if the input fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEmbedding:
    """The vector of one token. For a special token ``start`` and ``end`` are 0."""

    token: str
    start: int
    end: int
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseVector:
    """The tokens of the vocabulary with non-zero weights, and these weights."""

    indices: tuple[int, ...]
    """Token ids, ascending."""
    values: tuple[float, ...]
    tokens: tuple[str, ...]
    """The tokens with these ids, as the vocabulary spells them."""

    def top(self, count: int) -> tuple[tuple[str, float], ...]:
        """The ``count`` tokens with the largest weights, with these weights, largest first."""
        weights = sorted(zip(self.tokens, self.values, strict=True), key=lambda pair: -pair[1])
        return tuple(weights[:count])


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """The vector, sparse vector and token vectors of one input; see ``client.similarity``."""

    values: tuple[float, ...]
    """Empty if the request wants no dense vector, or the model has none."""
    usage: Usage
    reading: Reading
    tokens: tuple[TokenEmbedding, ...] = ()
    """Empty unless ``token_embeddings`` was set or the vectors are multi-vector."""
    sparse: SparseVector | None = None
    """``None`` unless the vectors are sparse."""


@dataclass(frozen=True, slots=True)
class LabelScore:
    label: str
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Classification:
    labels: tuple[LabelScore, ...]
    """Most likely first."""
    usage: Usage
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSpan:
    """A token and where it is in its text. For a special token ``start`` and ``end`` are 0."""

    token: str
    """The token as the vocabulary spells it."""
    start: int
    end: int
    text: int
    """Index of the token's text in a pair: 0 or 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttendedText:
    """The tokens of one text or pair, and an encoder's attention between them."""

    tokens: tuple[TokenSpan, ...]
    """Special tokens included."""
    matrices: tuple[AttentionMatrix, ...]
    """Attention weights; rows are the attending tokens, columns the attended ones."""
    usage: Usage
    reading: Reading

    @property
    def attention(self) -> Attention:
        """The same weights as an ``Attention``, the type that ``generate`` returns."""
        tokens = tuple(span.token for span in self.tokens)
        return Attention(
            source_tokens=tokens, target_tokens=tokens, matrices=self.matrices, alignments=()
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    """A labelled part of the input: ``text`` is ``input[start:end]``."""

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
    """Most likely first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskFilling:
    masks: tuple[FilledMask, ...]
    """In the order of the text."""
    usage: Usage
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSpan:
    """An answer: ``text`` is ``context[start:end]``, or empty for "no answer"."""

    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    spans: tuple[AnswerSpan, ...]
    """Most likely first."""
    usage: Usage
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class TextEdit:
    """``original``, which is ``input[start:end]``, became ``replacement``; either may be empty."""

    start: int
    end: int
    original: str
    replacement: str
    score: float
    """The lowest probability among the model's edits that it combines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    text: str
    edits: tuple[TextEdit, ...]
    """In the order of the input; applying all of them to the input gives ``text``."""
    iterations: int
    """Number of passes of the model over the text."""
    is_final: bool
    """Whether another pass would change nothing."""
    usage: Usage
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedDocument:
    index: int
    """Position in the request's documents."""
    score: float
    document: str
    """Empty unless ``return_documents`` was set."""
    reading: Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedResult(Result):
    outputs: tuple[Embedding, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedBatch:
    """The result of one batch of ``embed_stream``."""

    id: int
    model: str
    outputs: tuple[Embedding, ...]
    usage: Usage
    timing: Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class AttendResult(Result):
    """The result of ``attend``."""

    outputs: tuple[AttendedText, ...]


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
class CorrectResult(Result):
    outputs: tuple[Correction, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankResult(Result):
    """Outputs are sorted by score, best first, not in the order of the documents."""

    outputs: tuple[RankedDocument, ...]
