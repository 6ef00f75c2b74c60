"""What the embedding protocols share: kinds of embeddings, and names of what a text is for."""

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

# Our own names, NVIDIA's "passage", and Cohere's.
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
    """What a protocol calls ``name``; ``None`` for purposes that are no search."""
    return _INPUT_TYPES.get(name)


def check_kind(model: ModelInfo, *kinds: EmbeddingKind) -> EmbeddingKind:
    """The kind of a model's embeddings; of one that has none, which the service rejects, any.

    Raises:
        InvalidArgumentError: it is another kind. Names the field ``model``, and the right path.
    """
    if model.embedding is None:
        return kinds[0]
    kind = model.embedding.kind
    if kind not in kinds:
        advice = _ADVICE_IMAGES if model.image else _ADVICE[kind].format(model.name)
        raise InvalidArgumentError("model", f"{model.name!r} {advice}")
    return kind


def required(part: T | None) -> T:
    """A part of an embedding that :func:`check_kind` found its model to have.

    Raises:
        InvalidArgumentError: a model of another kind took its place since.
    """
    if part is None:
        raise InvalidArgumentError("model", "became another kind of model during the call")
    return part


def encoded(vectors: Vectors, encoding: Encoding | None) -> Any:
    """A vector, or several: as lists of numbers, or as little-endian float32 in base64, by rows."""
    if encoding == "base64":
        return base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii")
    return vectors.tolist()
