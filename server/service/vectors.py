"""Computes the vectors of texts and images from the model's outputs for their windows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from model.bundle import EmbeddingKind
from server.bounds import MAX_ACTIVE_DIMS
from server.engine.encoder_runner import TOKEN_VECTORS
from server.engine.requests.update import EncoderOutput
from server.engine.sparse_vectors import SparseWeights, largest_weights
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.embedding import Embedding, EmbedRequest, SparseVector, TokenEmbeddings
from server.service.embedding_kinds import kinds_of, token_vectors_of, weights_of
from server.service.encoder_options import Floats
from server.service.input_types import reader_of
from server.service.truncation import truncation_of, usage_of
from server.text.windows import TokenizedText

Outputs = Sequence[Sequence[EncoderOutput]]
"""The model's output for each window of each text."""

MIN_NORM = 1e-12  # the eps of torch.nn.functional.normalize


def is_normalized(model: Model) -> bool:
    """Whether the model's vectors have length 1."""
    embedding = model.manifest.embedding
    return embedding is not None and embedding.is_normalized


def normalized(vectors: Floats) -> Floats:
    """Scales a vector, or each row of a matrix, to length 1."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units: Floats = vectors / np.maximum(norms, MIN_NORM)
    return units


def mean_vector(text: TokenizedText, outputs: Sequence[EncoderOutput]) -> Floats:
    """The mean of the windows' vectors, weighted by the text's tokens in each."""
    if len(outputs) == 1:
        return outputs[0].vector
    weights = np.array([window.num_text_tokens for window in text.windows], np.float32)
    vectors = np.stack([output.vector for output in outputs])
    mean: Floats = (weights[:, None] * vectors).sum(0) / weights.sum()
    return mean


def sparse_weights(
    text: TokenizedText, outputs: Sequence[EncoderOutput], model: Model, max_active_dims: int
) -> SparseWeights:
    """The highest weight of each token over all windows; keeps the largest ``max_active_dims``."""
    windows = [
        weights_of(window, output, model, max_active_dims)
        for window, output in zip(text.windows, outputs, strict=True)
    ]
    if len(windows) == 1:
        return windows[0]
    whole = np.zeros(model.manifest.dimensions.vocabulary_size, np.float32)
    for window in windows:
        whole[window.indices] = np.maximum(whole[window.indices], window.values)
    return largest_weights(whole, max_active_dims)


def finished(
    vectors: Floats, request: EmbedRequest, is_unit: bool, *, is_mean: bool = False
) -> Floats:
    """Truncates and normalizes a vector, or each row of a matrix, as the request asks.

    ``is_unit`` means that the model's vectors have length 1; ``is_mean`` that this is a mean of
    them, so its length may not be 1.
    """
    is_changed = request.dimensions is not None or is_mean
    vectors = vectors[..., : request.dimensions]
    if (is_unit and is_changed) or (request.normalize and not is_unit):
        vectors = normalized(vectors)
    return vectors


def _dense(
    texts: Sequence[TokenizedText], outputs: Outputs, request: EmbedRequest, model: Model
) -> Iterator[Embedding]:
    for text, windows in zip(texts, outputs, strict=True):
        vector = mean_vector(text, windows)
        vector = finished(vector, request, is_normalized(model), is_mean=len(windows) > 1)
        tokens = None
        if request.token_embeddings:
            vectors = windows[0].of_tokens.get(TOKEN_VECTORS)
            if vectors is None:
                raise InvalidArgumentError(
                    "token_embeddings", "the model's bundle does not return them: export it again"
                )
            tokens = _token_embeddings(text, range(len(vectors)), vectors, model)
        yield Embedding(vector, usage_of(text), truncation_of(text), tokens)


def _sparse(
    texts: Sequence[TokenizedText], outputs: Outputs, request: EmbedRequest, model: Model
) -> Iterator[Embedding]:
    size = model.manifest.dimensions.vocabulary_size
    limit = request.max_active_dims or MAX_ACTIVE_DIMS
    vectors = [
        sparse_weights(text, windows, model, limit)
        for text, windows in zip(texts, outputs, strict=True)
    ]
    is_used = np.zeros(size, bool)
    for vector in vectors:
        is_used[vector.indices] = True
    ids = np.flatnonzero(is_used).tolist()
    tokens = dict(zip(ids, model.tokenizer.tokens(ids), strict=True))
    for text, vector in zip(texts, vectors, strict=True):
        spelled = tuple(tokens[id_] for id_ in vector.indices.tolist())
        sparse = SparseVector(vector.indices, vector.values, spelled)
        yield Embedding(None, usage_of(text), truncation_of(text), sparse=sparse)


def _multi_vector(
    texts: Sequence[TokenizedText], outputs: Outputs, request: EmbedRequest, model: Model
) -> Iterator[Embedding]:
    reader = reader_of(model, request.input_type)
    for text, (output,) in zip(texts, outputs, strict=True):
        if reader is None:
            kept: Sequence[int] = range(1, len(text.windows[0].token_ids))
            vectors = finished(token_vectors_of(output), request, True)
        else:
            kept = reader.kept(text.windows[0].token_ids)
            vectors = finished(output.vector[kept], request, is_normalized(model))
        tokens = _token_embeddings(text, kept, vectors, model)
        yield Embedding(None, usage_of(text), truncation_of(text), tokens)


def _token_embeddings(
    text: TokenizedText, kept: Sequence[int], vectors: Floats, model: Model
) -> TokenEmbeddings:
    """Returns the tokens ``kept`` of a text in one window, with their ``vectors``."""
    window = text.windows[0]
    offsets = [(0, 0)] * len(window.token_ids)
    end = window.text_start + window.num_text_tokens
    offsets[window.text_start : end] = text.offsets[window.first_token :]
    return TokenEmbeddings(
        tokens=tuple(model.tokenizer.tokens([window.token_ids[index] for index in kept])),
        offsets=tuple(offsets[index] for index in kept),
        vectors=vectors,
    )


_EMBEDDINGS: dict[
    EmbeddingKind,
    Callable[[Sequence[TokenizedText], Outputs, EmbedRequest, Model], Iterator[Embedding]],
] = {
    EmbeddingKind.DENSE: _dense,
    EmbeddingKind.SPARSE: _sparse,
    EmbeddingKind.MULTI_VECTOR: _multi_vector,
}


def embeddings_of(
    texts: Sequence[TokenizedText], outputs: Outputs, request: EmbedRequest, model: Model
) -> Iterator[Embedding]:
    """Yields the embedding of each text, from the outputs for its windows.

    Raises:
        InvalidArgumentError: the request asks for token vectors that the bundle does not return.
    """
    kinds = kinds_of(request.vectors, model)
    parts = [_EMBEDDINGS[kind](texts, outputs, request, model) for kind in kinds]
    if len(parts) == 1:
        yield from parts[0]
        return
    for embeddings in zip(*parts, strict=True):
        by_kind = dict(zip(kinds, embeddings, strict=True))
        vector = by_kind.get(EmbeddingKind.DENSE)
        sparse = by_kind.get(EmbeddingKind.SPARSE)
        tokens = by_kind.get(EmbeddingKind.MULTI_VECTOR)
        yield replace(
            embeddings[0],
            vector=None if vector is None else vector.vector,
            tokens=None if tokens is None else tokens.tokens,
            sparse=None if sparse is None else sparse.sparse,
        )
