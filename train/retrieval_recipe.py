"""The recipe's section for models that embed queries and documents."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from model.bundle import EmbeddingKind
from model.config import PoolingKind
from train.section import Count, Positive, PositiveFloat, Section

MIN_LENGTH = 4  # the first and last special tokens, a marker and one token of the text
Length = Annotated[int, msgspec.Meta(ge=MIN_LENGTH, le=1 << 16)]
Penalty = Annotated[float, msgspec.Meta(ge=0)]
TEXT_POOLINGS = (
    PoolingKind.CLS,
    PoolingKind.MEAN,
    PoolingKind.MEAN_SQRT,
    PoolingKind.WEIGHTED_MEAN,
    PoolingKind.MAX,
    PoolingKind.LAST,
)


class RetrievalRecipe(Section, frozen=True, kw_only=True):
    """A bi-encoder: one model for queries and for documents.

    The loss is the cross-entropy of a query's relevant document among all documents of its batch
    (Henderson et al. 2017; Karpukhin et al. 2020, section 3.2). Documents are cut to
    ``data.max_length`` tokens.

    Attributes:
        vectors: ``dense``, the cosine of two vectors; ``sparse``, the dot product of the weights
            of the vocabulary's tokens (Formal et al. 2021, SPLADE v2); ``multi_vector``, the sum
            of each query token's best cosine (Khattab and Zaharia 2020, ColBERT).
        temperature: similarities are divided by it; default 0.05 for ``dense``, else 1.
        pooling: for ``dense``; default: the mean.
        size: for ``dense`` and ``multi_vector``, size to which a linear layer maps hidden vectors;
            default: no such layer.
        query_flops, document_flops: for ``sparse``, weights of the FLOPS regularizer in the loss
            (Paria et al. 2020, equation 4); larger values give fewer tokens.
        flops_warmup_steps: steps over which these weights grow quadratically (Formal et al. 2021,
            section 4).
        query_length: for ``multi_vector``, the length to which queries are cut, in tokens.
        query_marker, document_marker: for ``multi_vector``, the tokens that follow the first token
            of a text; default: none. A tokenizer that the recipe trains gets them.
        fills_queries: for ``multi_vector``, whether masks pad queries to ``query_length``.
        attends_to_fillers: whether the other tokens attend to these masks.
        skips_punctuation: for ``multi_vector``, whether punctuation in documents gets no vectors.
    """

    vectors: EmbeddingKind
    temperature: PositiveFloat | None = None
    pooling: PoolingKind | None = None
    size: Positive | None = None
    query_flops: Penalty = 0.0
    document_flops: Penalty = 0.0
    flops_warmup_steps: Count = 0
    query_length: Length = 32
    query_marker: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    document_marker: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    fills_queries: bool = False
    attends_to_fillers: bool = False
    skips_punctuation: bool = False

    @property
    def is_multi_vector(self) -> bool:
        return self.vectors == EmbeddingKind.MULTI_VECTOR

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers that the tokenizer needs."""
        return tuple(token for token in (self.query_marker, self.document_marker) if token)


# The kinds of vectors for which a field is allowed.
FIELDS: dict[str, tuple[EmbeddingKind, ...]] = {
    "pooling": (EmbeddingKind.DENSE,),
    "size": (EmbeddingKind.DENSE, EmbeddingKind.MULTI_VECTOR),
    **dict.fromkeys(
        ("query_flops", "document_flops", "flops_warmup_steps"), (EmbeddingKind.SPARSE,)
    ),
    **dict.fromkeys(
        (
            *("query_length", "query_marker", "document_marker"),
            *("fills_queries", "attends_to_fillers", "skips_punctuation"),
        ),
        (EmbeddingKind.MULTI_VECTOR,),
    ),
}


def conflicts(recipe: RetrievalRecipe, max_positions: int | None) -> Iterator[str]:
    """Problems that involve several fields, each with the field's name.

    ``max_positions``: that of the model, if the recipe has one.
    """
    defaults = {field.name: field.default for field in msgspec.structs.fields(RetrievalRecipe)}
    for name, kinds in FIELDS.items():
        if recipe.vectors not in kinds and getattr(recipe, name) != defaults[name]:
            yield f"retrieval.{name}: not for {recipe.vectors} vectors"
    if recipe.pooling is not None and recipe.pooling not in TEXT_POOLINGS:
        yield f"retrieval.pooling: {recipe.pooling} is not for texts"
    if recipe.attends_to_fillers and not recipe.fills_queries:
        yield "retrieval.attends_to_fillers: needs fills_queries"
    if recipe.query_marker is not None and recipe.query_marker == recipe.document_marker:
        yield "retrieval.document_marker: the same as query_marker"
    too_long = max_positions is not None and recipe.query_length > max_positions
    if recipe.is_multi_vector and too_long:
        yield f"retrieval.query_length: more than model.max_positions, {max_positions}"
