"""The parts that make an encoder a bi-encoder: its head, and how it tokenizes texts."""

import string

import msgspec
from tokenizers import Tokenizer

from model.bundle import Embedding, EmbeddingKind, MultiVector, SpecialTokens
from model.config import DenseConfig, HeadConfig, HeadKind, ModelConfig, PoolingKind
from train.errors import RecipeError
from train.retrieval_recipe import RetrievalRecipe

MASKS = ("[MASK]", "<mask>")  # the masks of tokenizers whose checkpoint does not name one


def with_retrieval_head(model: ModelConfig, recipe: RetrievalRecipe) -> ModelConfig:
    """The layers of ``model`` with the head for the vectors of ``recipe``.

    For sparse vectors, ``model`` has a masked language model's head, which becomes the sparse one.
    """
    encoder = model.encoder
    if encoder is not None and recipe.fills_queries and not recipe.attends_to_fillers:
        encoder = msgspec.structs.replace(encoder, has_unattended=True)
    return msgspec.structs.replace(model, encoder=encoder, head=_head(model.head, recipe))


def _head(language_model: HeadConfig, recipe: RetrievalRecipe) -> HeadConfig:
    if recipe.vectors == EmbeddingKind.SPARSE:
        return msgspec.structs.replace(language_model, kind=HeadKind.SPARSE_EMBEDDING)
    dense = () if recipe.size is None else (DenseConfig(size=recipe.size, bias=False),)
    if recipe.is_multi_vector:
        return HeadConfig(kind=HeadKind.MULTI_VECTOR_EMBEDDING, dense=dense, normalize=True)
    return HeadConfig(
        kind=HeadKind.EMBEDDING,
        pooling=recipe.pooling or PoolingKind.MEAN,
        dense=dense,
        normalize=True,
    )


def reading_of(
    recipe: RetrievalRecipe, max_length: int, tokenizer: Tokenizer, special: SpecialTokens
) -> MultiVector:
    """How the model tokenizes queries and documents; only multi-vector models do more than cut.

    Raises:
        RecipeError: the tokenizer lacks a marker or a mask.
    """
    probe = tokenizer.encode("a").special_tokens_mask
    has_end_token = bool(probe and probe[-1])
    if not recipe.is_multi_vector:
        return MultiVector(
            query_length=max_length, document_length=max_length, has_end_token=has_end_token
        )
    for token in recipe.markers:
        if tokenizer.token_to_id(token) is None:
            raise RecipeError(f"retrieval: the tokenizer of start_from has no token {token}")
    filler = special.mask
    if filler is None:
        found = (tokenizer.token_to_id(token) for token in MASKS)
        filler = next((id_ for id_ in found if id_ is not None), None)
    if recipe.fills_queries and filler is None:
        raise RecipeError("retrieval.fills_queries: the tokenizer of start_from has no mask")
    query_marker, document_marker = (
        None if token is None else tokenizer.token_to_id(token)
        for token in (recipe.query_marker, recipe.document_marker)
    )
    return MultiVector(
        query_marker=query_marker,
        document_marker=document_marker,
        query_length=recipe.query_length,
        document_length=max_length,
        has_end_token=has_end_token,
        filler=filler if recipe.fills_queries else None,
        attends_to_filler=recipe.attends_to_fillers,
        skipped=_punctuation(tokenizer) if recipe.skips_punctuation else (),
    )


def _punctuation(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens of ASCII punctuation, alone or after a space."""
    found = set()
    for symbol in string.punctuation:
        for text in (symbol, f"a {symbol}"):
            encoding = tokenizer.encode(text, add_special_tokens=False)
            start, end = encoding.offsets[-1] if encoding.offsets else (0, 0)
            if text[start:end].strip() == symbol and encoding.ids[-1] not in _unknown(tokenizer):
                found.add(encoding.ids[-1])
    return tuple(sorted(found))


def _unknown(tokenizer: Tokenizer) -> set[int | None]:
    return {tokenizer.token_to_id(token) for token in ("[UNK]", "<unk>")}


def embedding_of(recipe: RetrievalRecipe, model: ModelConfig, reading: MultiVector) -> Embedding:
    """The description of a trained ``model``'s vectors, for its bundle."""
    head = model.head
    size = head.dense[-1].size if head.dense else model.hidden_size
    if recipe.vectors == EmbeddingKind.SPARSE:
        size = model.vocabulary_size
    return Embedding(
        kind=recipe.vectors,
        size=size,
        pooling=head.pooling,
        is_normalized=head.normalize,
        multi_vector=reading if recipe.is_multi_vector else None,
    )
