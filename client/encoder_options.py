"""Options of the encoder calls, declared as in ``client.options``."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypedDict

from client.options import Flag


class LongInput(StrEnum):
    """How a text with more tokens than the model's limit is handled."""

    ERROR = "error"
    TRUNCATE_RIGHT = "truncate_right"
    """Drop the end of the text."""
    TRUNCATE_LEFT = "truncate_left"
    """Drop the start of the text."""
    WINDOWS = "windows"
    """Split the text into overlapping windows; not for ``classify`` and ``fill_mask``."""


class EncodingFormat(StrEnum):
    """Wire format of vectors. ``Embedding.values`` are Python floats in every format."""

    FLOAT = "float"
    FLOAT32_BYTES = "float32_bytes"
    FLOAT16_BYTES = "float16_bytes"


class InputType(StrEnum):
    """Whether a text is a query or a document in a search."""

    QUERY = "query"
    DOCUMENT = "document"


class EmbeddingKind(StrEnum):
    """A kind of vectors of a text."""

    DENSE = "dense"
    """One vector."""
    SPARSE = "sparse"
    """Weights of tokens of the vocabulary."""
    MULTI_VECTOR = "multi_vector"
    """A vector for each token."""


class Aggregation(StrEnum):
    """How tokens are merged into entities."""

    NONE = "none"
    """Each token is an entity, with the model's own label (B- and I- included)."""
    SIMPLE = "simple"
    """Adjacent tokens of one label form an entity."""
    FIRST = "first"
    """As SIMPLE over words; a word has the label of its first token."""
    AVERAGE = "average"
    """As SIMPLE over words; a word has the label of its tokens' mean scores."""
    MAX = "max"
    """As SIMPLE over words; a word has the label of its highest-scoring token."""


class ScoreFunction(StrEnum):
    """How logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the text to search for its answer."""

    question: str
    context: str


class LengthOptions(TypedDict, total=False):
    """How inputs over the length limit are handled, and the model's version."""

    version: Annotated[str, Flag(help="Model version; the newest by default.")]
    long_input: Annotated[LongInput | None, Flag(help="How a text over the limit is handled.")]
    max_tokens: Annotated[int | None, Flag(help="Token limit per window, special tokens included.")]
    stride: Annotated[
        int | None, Flag(help="Overlap of adjacent windows in tokens; by default a quarter.")
    ]


class EmbedOptions(LengthOptions, total=False):
    encoding_format: Annotated[
        EncodingFormat,
        Flag(help="Wire format of the vectors.", default=EncodingFormat.FLOAT32_BYTES),
    ]
    """By default packed 32-bit floats: exact, and the fastest to transfer."""
    dimensions: Annotated[
        int | None, Flag(help="Truncate vectors to this size, if the model supports it.")
    ]
    normalize: Annotated[
        bool | None,
        Flag(help="Scale vectors to length 1; by default as the model does.", negatable=True),
    ]
    prompt_name: Annotated[
        str | None, Flag(help="Name of the model's prompt to prepend to each text.")
    ]
    prompt: str | None
    """Text to prepend to each input instead of one of the model's prompts; may be empty."""
    token_embeddings: bool | None
    """Also return the vector of each token. Not allowed with windows or sparse vectors."""
    input_type: Annotated[
        InputType | None,
        Flag(help="Read texts as queries or as documents, with the model's prompt for them."),
    ]
    max_active_dims: Annotated[
        int | None, Flag(help="Of a sparse vector, keep the k largest weights; 1024 by default.")
    ]
    vectors: Annotated[
        Sequence[EmbeddingKind],
        Flag(help="Kind of vectors to return of a model with several; by default its first."),
    ]


class ClassifyOptions(LengthOptions, total=False):
    top_k: Annotated[int | None, Flag(help="Return the k best labels; all by default.")]
    score_function: Annotated[
        ScoreFunction | None, Flag(help="How logits become scores; by default the model's own.")
    ]

    candidate_labels: Annotated[
        Sequence[str],
        Flag(name="label", help="Label to choose from, for a model of language inference."),
    ]
    """Zero-shot labels, for a model with a label "entailment". Texts only, no pairs or images."""
    hypothesis_template: Annotated[
        str | None, Flag(help="Text with {} for a label; 'This example is {}.' by default.")
    ]
    multi_label: Annotated[
        bool | None, Flag(help="Score each of these labels alone, as several may apply.")
    ]


class AttendOptions(LengthOptions, total=False):
    layers: Sequence[int]
    """Counted from 0, in the order in which they run; empty means all."""
    heads: Sequence[int]
    """Counted from 0; empty means all."""
    average: bool
    """Return one matrix, the mean over the selected layers and heads."""


class TagOptions(LengthOptions, total=False):
    aggregation: Annotated[
        Aggregation | None,
        Flag(help="How tokens are merged into entities.", default=Aggregation.SIMPLE),
    ]
    ignored_labels: Annotated[
        Sequence[str], Flag(name="ignore", help="Label that is no entity; O by default.")
    ]
    min_score: Annotated[
        float | None, Flag(help="Drop entities with a lower score; 0 by default, 0.5 with labels.")
    ]
    candidate_labels: Annotated[
        Sequence[str],
        Flag(name="label", help="Label to find, for a model without its own (GLiNER)."),
    ]
    """The labels to find, for a model without labels of its own."""
    nested: Annotated[bool | None, Flag(help="Allow entities of these labels inside others.")]
    multi_label: Annotated[
        bool | None, Flag(help="Allow several of these labels for the same words.")
    ]


class FillMaskOptions(LengthOptions, total=False):
    top_k: Annotated[int | None, Flag(help="Candidates per mask; 5 by default.")]
    targets: Annotated[
        Sequence[str], Flag(name="target", help="Consider only this word, a single token.")
    ]


class AnswerOptions(LengthOptions, total=False):
    top_k: Annotated[int | None, Flag(help="Return the k best answers; 1 by default.")]
    max_answer_tokens: Annotated[int | None, Flag(help="Longest answer in tokens; 15 by default.")]
    allow_no_answer: Annotated[
        bool | None, Flag(help="Allow an empty answer: the text contains none.")
    ]


class CorrectOptions(LengthOptions, total=False):
    max_iterations: Annotated[
        int | None, Flag(help="Times that the model may read and edit a text; 5 by default.")
    ]
    min_score: Annotated[
        float | None, Flag(help="Drop edits with a lower score; by default the model's own limit.")
    ]


class RerankOptions(LengthOptions, total=False):
    top_n: Annotated[int | None, Flag(help="Return the n best documents; all by default.")]
    return_documents: bool | None
    """Return the documents' texts too."""
    score_function: Annotated[
        ScoreFunction | None, Flag(help="How logits become scores; by default the model's own.")
    ]
    query_prompt_name: str | None
    """Name of the model's prompt to prepend to the query."""
    document_prompt_name: str | None
    """Name of the model's prompt to prepend to each document."""
    vectors: Annotated[
        Sequence[EmbeddingKind],
        Flag(help="Kind of vectors to compare of a model with several; by default its first."),
    ]
    weights: Annotated[
        Sequence[float],
        Flag(name="weight", help="Weight of a kind's score in their mean; once for each."),
    ]
