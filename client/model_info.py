"""Descriptions of models: the result of ``list_models`` and ``get_model``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
class VectorFidelity:
    """The figures of :class:`Fidelity` with the same names."""

    min_cosine: float
    mean_cosine: float
    retrieval_agreement: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fidelity:
    """The served graph compared with the fp32 graph; ``None`` where a figure does not apply."""

    num_texts: int
    num_tokens: int
    """Compared tokens: the fp32 graph's greedy outputs, or masked tokens; 0 for other encoders."""
    top1_agreement: float | None
    """Share of tokens, labels or answers whose most probable choice is the same."""
    kl_divergence: float | None
    """KL(fp32 || served) per token, in nats."""
    rms_logprob_difference: float | None
    """RMS difference of the log-probabilities of the fp32 graph's tokens, in nats."""
    mean_probability: float | None
    """Mean probability that the fp32 graph gives to its own tokens."""
    identical_outputs: float | None
    """Share of an encoder-decoder's greedy outputs that are identical."""
    chrf: float | None
    """chrF of these outputs against the fp32 graph's outputs, in percent."""
    min_cosine: float | None
    mean_cosine: float | None
    retrieval_agreement: float | None
    """Share of texts whose nearest other text is the same."""
    max_probability_difference: float | None
    exceeded_limits: tuple[str, ...]
    """Limits that the bundle exceeds; its export accepted the loss."""
    other_vectors: Mapping[str, VectorFidelity] = field(default_factory=dict)
    """By kind, for a model with several kinds of vectors: all but ``EmbeddingInfo.kind``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """The export's comparison of the ONNX graphs with the PyTorch model."""

    max_absolute_error: float
    greedy_tokens_compared: int
    greedy_tokens_equal: int
    min_cosine: float
    perplexity: float
    """The served graph's perplexity over ``evaluation_tokens``; 0 for non-generative models."""
    fp32_perplexity: float
    evaluation_tokens: int
    float_cache_perplexity: float
    """The served graph's perplexity with a float cache, if its own cache is int8; else 0."""
    fidelity: Fidelity | None = None
    """``None`` if the fp32 graph itself is served, and for older bundles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """Task quality on a held-out set, measured by the export through the served graph.

    ``bleu`` and ``chrf`` are in percent; ``accuracy``, ``f1``, ``exact_match`` and
    ``character_error_rate`` are shares.
    """

    task: str
    dataset: str
    sha256: str
    """SHA-256 of the held-out set's file."""
    num_examples: int
    decoding: str
    """``greedy``, or empty for an encoder."""
    metrics: Mapping[str, float]
    fp32_metrics: Mapping[str, float]
    """The same metrics for the fp32 graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInfo:
    """The model's image input; the server resizes and crops other images to this size."""

    height: int
    width: int
    num_channels: int
    """3: red, green and blue; 1: grey."""
    num_tokens: int
    """Tokens per image, as usage counts them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioInfo:
    """The model's audio input; the server resamples recordings, mixes them down and cuts them."""

    sample_rate: int
    """Samples per second; one channel."""
    window_seconds: float
    num_tokens: int
    """Tokens per window, as usage counts them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingInfo:
    """Properties of an embedding model's vectors."""

    size: int
    is_normalized: bool
    pooling: str
    """Empty unless ``kind`` is ``dense``."""
    truncations: tuple[int, ...]
    """Sizes to which vectors may be truncated (Matryoshka); any size if empty."""
    prompts: Mapping[str, str]
    """Prompts that are prepended to inputs, by name."""
    default_prompt: str
    """Name of the prompt that is used if a request names none."""
    kind: str = "dense"
    """``dense``, ``sparse`` or ``multi_vector`` (late interaction: one vector per token)."""
    query_length: int = 0
    """Maximum tokens of a query; 0 unless ``kind`` is ``multi_vector``."""
    document_length: int = 0
    """Maximum tokens of a document; 0 unless ``kind`` is ``multi_vector``."""
    kinds: tuple[str, ...] = ()
    """All kinds of vectors of a model with several, ``kind`` first; empty for other models."""
    token_vector_size: int = 0
    """The size of the vectors of tokens in such a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryInfo:
    """The server memory that a model uses, in bytes."""

    weight_bytes: int
    cache_bytes: int
    """Size of the cache if every slot were full."""
    cache_resident_bytes: int
    """Cache memory in use when the server last checked, some seconds ago."""
    working_bytes: int
    """Estimated memory for intermediate results of model runs."""
    prefix_slots: int
    """Cache rows per lane for cached prefixes, in addition to the slots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelNodes:
    """Node counts of one graph, by the kernel that computes or could replace the nodes."""

    graph: str
    """The graph's name, such as ``encode`` or ``decode``."""
    num_native: Mapping[str, int]
    """Nodes that the server's own kernel computes."""
    num_standard: Mapping[str, int]
    """Nodes of the operators that the kernel replaces, which ONNX Runtime computes nevertheless."""


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
    """Length limit in tokens."""
    source_language: str
    target_language: str
    languages: tuple[str, ...]
    """Languages that a multilingual model translates from and to, or transcribes."""
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
    """The server's own kernels that compute nodes of this model's graphs."""
    quality: tuple[Quality, ...] = ()
    """Empty if the export measured none."""
    memory: MemoryInfo | None = None
    """The memory that the model uses; ``None`` while it is not loaded, and for adapters."""
    kernel_nodes: tuple[KernelNodes, ...] = ()
    """One entry per graph that is loaded on a CPU; empty from older servers."""
    image: ImageInfo | None = None
    """Only for models that take images; those with a vocabulary take a text with each image."""
    audio: AudioInfo | None = None
    """Only for models that take recordings."""
    max_source_length: int = 0
    """Length limit of an encoder-decoder's source in tokens; 0: as ``max_length``."""
    base_model: str = ""
    """The model that a LoRA adapter changes; empty for whole models."""
    adapters: tuple[str, ...] = ()
    """The LoRA adapters of a model, each a model itself: ``MODEL:ADAPTER``."""
