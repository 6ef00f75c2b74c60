"""Descriptions of models: the result of ``list_models`` and ``get_model``."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ModelKind(StrEnum):
    ENCODER = "encoder"
    DECODER = "decoder"
    ENCODER_DECODER = "encoder_decoder"


class ModelState(StrEnum):
    READY = "ready"
    REFUSED = "refused"
    """The bundle could not be loaded; ``Model.failure`` is the reason."""
    LOADING = "loading"
    UNLOADING = "unloading"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """The export's comparison of the ONNX graphs with the PyTorch model."""

    max_absolute_error: float
    greedy_tokens_compared: int
    greedy_tokens_equal: int
    min_cosine: float
    perplexity: float
    """The served graph's, over ``evaluation_tokens``; 0 for a model that generates no text."""
    fp32_perplexity: float
    evaluation_tokens: int
    float_cache_perplexity: float
    """The served graph's with a float cache, if its own cache is int8; else 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingInfo:
    """Properties of an embedding model's vectors."""

    size: int
    is_normalized: bool
    pooling: str
    truncations: tuple[int, ...]
    """Sizes to which vectors may be truncated (Matryoshka); any size if empty."""
    prompts: Mapping[str, str]
    """Prompts that are prepended to inputs, by name."""
    default_prompt: str
    """Name of the prompt that is used if a request names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """One model of a server, in one version."""

    name: str
    version: str
    state: ModelState | None
    failure: str
    """Why the model is refused; empty otherwise."""
    kind: ModelKind | None
    tasks: tuple[str, ...]
    architecture: str
    precision: str
    license: str
    parameters: int
    vocabulary_size: int
    hidden_size: int
    max_length: int
    """In tokens."""
    source_language: str
    target_language: str
    languages: tuple[str, ...]
    """Languages that a multilingual model translates from and to."""
    labels: tuple[str, ...]
    has_chat_template: bool
    parity: Parity | None
    slots: int
    """Number of sequences that can decode at the same time."""
    mask_token: str
    """The text that marks a mask in inputs, for models that fill masks."""
    embedding: EmbeddingInfo | None
    """Only for embedding models."""
    kv_cache: str
    """``float`` or ``int8``, for models that generate text."""
    cache_bytes_per_token: int
    """Bytes of cache per token of a sequence."""
    native_kernels: tuple[str, ...] = ()
    """The server's own kernels that run instead of ONNX Runtime's operators."""
