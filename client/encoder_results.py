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
    """Weights of tokens of the model's vocabulary. Those of all other tokens are 0."""

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
    """The vector of one text, or its vectors; ``client.similarity`` compares them."""

    values: tuple[float, ...]
    """Empty for models with sparse vectors, and for those with a vector for each token."""
    usage: Usage
    reading: Reading
    tokens: tuple[TokenEmbedding, ...] = ()
    """If ``token_embeddings`` was set, and of models with a vector for each token."""
    sparse: SparseVector | None = None
    """Only of models with sparse vectors."""


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
    """As the vocabulary spells it."""
    start: int
    end: int
    text: int
    """The text of a pair: 0 or 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttendedText:
    """The tokens of one text or pair, and an encoder's attention between them."""

    tokens: tuple[TokenSpan, ...]
    """Special tokens included."""
    matrices: tuple[AttentionMatrix, ...]
    """Rows attend, columns are attended to; both are ``tokens``."""
    usage: Usage
    reading: Reading

    @property
    def attention(self) -> Attention:
        """The same in the form of other models' attention."""
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
    """The lowest probability of the model's edits in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    text: str
    edits: tuple[TextEdit, ...]
    """In the order of the input; they lead from the input to ``text``."""
    iterations: int
    """How often the model read the text."""
    is_final: bool
    """Whether the model would change nothing more."""
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
