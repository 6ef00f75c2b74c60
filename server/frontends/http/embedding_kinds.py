"""Helpers of the embedding protocols: kinds of embeddings, and names of input types."""

import base64
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from model.bundle import EmbeddingKind
from server.errors import InvalidArgumentError
from server.service.input_types import InputType
from server.service.model_info import ModelInfo

T = TypeVar("T")
Vectors = npt.NDArray[np.float32]
Encoding: TypeAlias = Literal["float", "base64"]

# The names of input types of this server, NVIDIA ("passage") and Cohere.
InputTypeName: TypeAlias = Literal[
    "query",
    "document",
    "passage",
    "search_query",
    "search_document",
    "classification",
    "clustering",
    "image",
]
JinaTask: TypeAlias = Literal[
    "retrieval.query",
    "retrieval.passage",
    "code.query",
    "code.passage",
    "text-matching",
    "classification",
    "clustering",
    "separation",
]
_INPUT_TYPES: Mapping[str | None, InputType] = {
    "query": InputType.QUERY,
    "search_query": InputType.QUERY,
    "retrieval.query": InputType.QUERY,
    "code.query": InputType.QUERY,
    "document": InputType.DOCUMENT,
    "passage": InputType.DOCUMENT,
    "search_document": InputType.DOCUMENT,
    "retrieval.passage": InputType.DOCUMENT,
    "code.passage": InputType.DOCUMENT,
}
_ADVICE = {
    EmbeddingKind.DENSE: "has one vector for each text: use /v1/embeddings or /{}/embed",
    EmbeddingKind.SPARSE: "has sparse vectors: use /{}/embed_sparse",
    EmbeddingKind.MULTI_VECTOR: (
        "has a vector for each token: use /v1/multi-vector or /{}/embed_all"
    ),
}
_ADVICE_IMAGES = "has one vector for each of its images: use /v1/embeddings"


def input_type_of(name: str | None) -> InputType | None:
    """The input type that a protocol calls ``name``; ``None`` for purposes other than search."""
    return _INPUT_TYPES.get(name)


def check_kind(model: ModelInfo, *kinds: EmbeddingKind) -> EmbeddingKind:
    """Returns the first of a model's kinds of embeddings that is one of ``kinds``.

    A model without embeddings passes, because the service rejects it.

    Raises:
        InvalidArgumentError: it has only other kinds; the error names the path to use.
    """
    if model.embedding is None:
        return kinds[0]
    first = model.embedding.kind
    found = next((kind for kind in model.embedding.kinds or (first,) if kind in kinds), None)
    if found is None:
        advice = _ADVICE_IMAGES if model.image else _ADVICE[first].format(model.name)
        raise InvalidArgumentError("model", f"{model.name!r} {advice}")
    return found


def required(part: T | None) -> T:
    """Returns a part of an embedding that the model has, according to :func:`check_kind`.

    Raises:
        InvalidArgumentError: the part is missing: a model of another kind replaced the model.
    """
    if part is None:
        raise InvalidArgumentError("model", "became another kind of model during the call")
    return part


def encoded(vectors: Vectors, encoding: Encoding | None) -> Any:
    """Encodes a vector or a matrix as lists of numbers, or as base64 of row-major ``<f4``."""
    if encoding == "base64":
        return base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii")
    return vectors.tolist()
