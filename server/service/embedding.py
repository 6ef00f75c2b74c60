"""The request of Embed, and its results: dense vectors, sparse vectors and token vectors."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from model.bundle import EmbeddingKind
from server.bounds import (
    INPUT_BYTES,
    MAX_ACTIVE_DIMS,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_NAME_BYTES,
    MAX_PREFIX_BYTES,
    MAX_TEXTS,
    bounded,
    ruled,
    sized,
)
from server.service.encoder_options import Floats, LengthOptions
from server.service.input_types import InputType
from server.service.requests import ModelRequest
from server.service.truncation import Truncation
from server.service.usage import Timing, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(ModelRequest):
    """Texts or images to embed, and the properties of their vectors.

    ``images`` are files, for a model that takes images.

    Vectors are truncated to ``dimensions`` (Matryoshka, Kusupati et al. 2022). ``normalize`` scales
    them to length 1; ``None`` means the model's default. ``prompt`` is prepended to each text;
    ``prompt_name`` selects one of the model's prompts instead; without both, the model's default
    prompt is used. ``input_type`` selects the prompt for queries or documents, and the encoding by
    a multi-vector (late-interaction) model. ``token_embeddings`` also returns the vector of each
    token; not allowed with windows. ``max_active_dims`` limits the weights of sparse vectors.
    ``vectors`` are the kinds to return of a model with several; by default the model's first.
    """

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    images: tuple[bytes, ...] = sized((), max_items=MAX_IMAGES, max_bytes=MAX_IMAGE_BYTES)
    dimensions: int | None = ruled("1 … the model's hidden size", None)
    normalize: bool | None = None
    prompt_name: str | None = sized(None, max_bytes=MAX_NAME_BYTES)
    prompt: str | None = sized(None, max_bytes=MAX_PREFIX_BYTES)
    input_type: InputType | None = None
    token_embeddings: bool = False
    max_active_dims: int | None = bounded(None, 1, MAX_ACTIVE_DIMS)
    vectors: tuple[EmbeddingKind, ...] = sized((), max_items=len(EmbeddingKind))
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class TokenEmbeddings:
    """Vectors of one input's tokens, special tokens included.

    ``tokens`` are spelled as in the vocabulary. ``offsets`` are the start and end of each token in
    the text including the prompt, in characters; (0, 0) for special tokens. ``vectors`` has shape
    ``[tokens, size]``.
    """

    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    vectors: Floats


@dataclass(frozen=True, slots=True)
class SparseVector:
    """The non-zero weights of the vocabulary's tokens.

    ``indices`` are token ids, ascending; ``values`` their weights; ``tokens`` their spelling.
    """

    indices: npt.NDArray[np.int32]
    values: Floats
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Embedding:
    """One input's ``vector`` of shape ``[size]``; ``None`` if the request wants other kinds.

    ``tokens`` is set if the request asks for it, and for multi-vector embeddings.
    """

    vector: Floats | None
    usage: Usage
    truncation: Truncation
    tokens: TokenEmbeddings | None = None
    sparse: SparseVector | None = None


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """The result of Embed, with outputs in the order of the inputs."""

    model: str
    outputs: tuple[Embedding, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return sum(map(_num_values, self.outputs))


def _num_values(output: Embedding) -> int:
    num_in_vector = 0 if output.vector is None else output.vector.size // 4
    num_in_tokens = 0 if output.tokens is None else output.tokens.vectors.size // 16
    num_in_sparse = 0 if output.sparse is None else output.sparse.values.size
    return 4 + num_in_vector + num_in_tokens + num_in_sparse
