"""The vectors of embedding models, as bundles describe them. Imports no torch."""

from enum import StrEnum

import msgspec

from model.config import PoolingKind
from model.graph_spec import Record, Size, TokenId


class EmbeddingKind(StrEnum):
    """The output for a text: one vector, weights of vocabulary tokens, or a vector per token."""

    DENSE = "dense"
    SPARSE = "sparse"
    MULTI_VECTOR = "multi_vector"


class MultiVector(Record, frozen=True, kw_only=True):
    """How a late-interaction model tokenizes texts (Khattab and Zaharia 2020, ColBERT).

    Attributes:
        query_marker: inserted after a query's first token; ``document_marker`` likewise.
        query_length: queries are cut to this many tokens, marker and special tokens included.
        document_length: the same for documents.
        has_end_token: whether the tokenizer ends texts with a special token, which is kept when a
            text is cut.
        filler: the token that pads queries to ``query_length``; None: queries are not padded.
        attends_to_filler: whether other tokens attend to the filler.
        skipped: tokens of documents that get no vector, such as punctuation.
    """

    query_marker: TokenId | None = None
    document_marker: TokenId | None = None
    query_length: Size
    document_length: Size
    has_end_token: bool = True
    filler: TokenId | None = None
    attends_to_filler: bool = False
    skipped: tuple[TokenId, ...] = ()


class TokenWeights(Record, frozen=True, kw_only=True):
    """Sparse vectors from a weight of each token of a text (Chen et al. 2024, M3-Embedding).

    The weight of a vocabulary token is the largest of its occurrences.

    Attributes:
        excluded: tokens without a weight, such as special tokens.
    """

    excluded: tuple[TokenId, ...] = ()


class TokenVectors(Record, frozen=True, kw_only=True):
    """A vector with L2 norm 1 for each token of a text but the first (M3-Embedding).

    Queries and documents are read alike. The similarity is the mean, not the sum, of each query
    vector's highest dot product (section 3.2).
    """

    size: Size


class StaticTokens(Record, frozen=True, kw_only=True):
    """How a static embedding model, whose vector is a mean of tokens' rows, tokenizes texts.

    Attributes:
        blank: what a text without tokens is read as; its row is 0.
        ignored: the token that is left out of texts: the unknown one (Model2Vec).
        characters_per_token: a text that is cut on the right to n tokens is first cut to n times as
            many characters (Model2Vec: the median length of its tokens).
    """

    blank: TokenId
    ignored: TokenId | None = None
    characters_per_token: Size | None = None


class Embedding(Record, frozen=True, kw_only=True):
    """The vectors of an embedding model.

    A model with dense vectors may have others too, from the same run of the graph.

    Attributes:
        kind: that of the vectors, or of those that a request gets by default.
        size: size of a vector; for sparse vectors, that of the vocabulary.
        pooling: for dense vectors.
        multi_vector: for models with a vector per token.
        static_tokens: for static embedding models.
        truncations: sizes to which vectors may be truncated (Kusupati et al. 2022, Matryoshka);
            empty: any size.
        prompts: prefixes for texts, by name.
    """

    kind: EmbeddingKind = EmbeddingKind.DENSE
    size: Size
    pooling: PoolingKind | None = None
    is_normalized: bool
    multi_vector: MultiVector | None = None
    # Of models with several kinds; older servers lack these fields and the next one.
    token_weights: TokenWeights | msgspec.UnsetType = msgspec.UNSET
    token_vectors: TokenVectors | msgspec.UnsetType = msgspec.UNSET
    static_tokens: StaticTokens | msgspec.UnsetType = msgspec.UNSET
    truncations: tuple[Size, ...] = ()
    prompts: dict[str, str] = msgspec.field(default_factory=dict)
    default_prompt: str | None = None

    @property
    def kinds(self) -> tuple[EmbeddingKind, ...]:
        """The kinds of vectors that a request may choose; the default first."""
        others = (
            (EmbeddingKind.SPARSE, self.token_weights),
            (EmbeddingKind.MULTI_VECTOR, self.token_vectors),
        )
        return (self.kind, *(kind for kind, spec in others if spec is not msgspec.UNSET))
