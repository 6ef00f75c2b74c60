"""The kinds of vectors that a request wants of a model, and the outputs that have them."""

from collections.abc import Sequence

from model.bundle import MULTI_VECTORS, SPARSE_WEIGHTS, EmbeddingKind
from server.engine.requests.update import EncoderOutput
from server.engine.sparse_vectors import SparseWeights, weights_of_tokens
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.encoder_options import Floats
from server.text.windows import Window

# Outputs with a row for each token, of models that have other kinds beside the first one.
_OUTPUTS = {EmbeddingKind.SPARSE: SPARSE_WEIGHTS, EmbeddingKind.MULTI_VECTOR: MULTI_VECTORS}


def kinds_of(requested: Sequence[EmbeddingKind], model: Model) -> tuple[EmbeddingKind, ...]:
    """The kinds of vectors to return: the requested ones, by default the model's first.

    Raises:
        InvalidArgumentError: the model does not have one, or one is given twice.
    """
    embedding = model.manifest.embedding
    known = (EmbeddingKind.DENSE,) if embedding is None else embedding.kinds
    for index, kind in enumerate(requested):
        if kind not in known:
            raise InvalidArgumentError(
                f"vectors[{index}]",
                f"{model.manifest.name!r} has no {kind} vectors; it has {', '.join(known)}",
            )
        if kind in requested[:index]:
            raise InvalidArgumentError(f"vectors[{index}]", f"{kind} is given twice")
    return tuple(requested) or known[:1]


def is_beside(kind: EmbeddingKind, model: Model) -> bool:
    """Whether the model has vectors of this kind beside those of its first kind."""
    embedding = model.manifest.embedding
    return embedding is not None and kind in embedding.kinds[1:]


def token_outputs(kinds: Sequence[EmbeddingKind], model: Model) -> tuple[str, ...]:
    """The names of the graph's outputs for each token that have vectors of these kinds."""
    return tuple(_OUTPUTS[kind] for kind in kinds if is_beside(kind, model))


def token_vector_size(kinds: Sequence[EmbeddingKind], model: Model) -> int | None:
    """The size of the vectors of tokens; ``None`` if ``kinds`` has none."""
    embedding = model.manifest.embedding
    if embedding is None or EmbeddingKind.MULTI_VECTOR not in kinds:
        return None
    return embedding.token_vectors.size if embedding.token_vectors else embedding.size


def token_vectors_of(output: EncoderOutput) -> Floats:
    """The vectors of a window's tokens but the first, of a model with several kinds."""
    return output.of_tokens[MULTI_VECTORS][1:]


def weights_of(
    window: Window, output: EncoderOutput, model: Model, max_active_dims: int
) -> SparseWeights:
    """The sparse vector of one window, with at most ``max_active_dims`` weights."""
    embedding = model.manifest.embedding
    if output.indices is not None:
        return SparseWeights(output.indices, output.vector)
    if embedding is None or not embedding.token_weights:
        raise ValueError("the model's vectors are not sparse")
    excluded = embedding.token_weights.excluded
    weights = output.of_tokens[SPARSE_WEIGHTS]
    return weights_of_tokens(window.token_ids, weights, excluded, max_active_dims)
