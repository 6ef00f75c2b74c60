"""Describes models, for ListModels, GetModel and LoadModel."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from model.adapters import adapter_label, bundle_of
from model.bundle import AudioSpec, Embedding, EmbeddingKind, ImageSpec, Manifest, Parity
from model.config import Kind
from model.quality import Measurement
from server.config import ServerConfig
from server.models.memory_ledger import with_planned_slots
from server.models.registry import Entry, Model
from server.models.registry import State as State  # noqa: PLC0414
from server.text.chat import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One version of a model. If it is not loaded, only the fields up to ``failure`` are set.

    ``slots`` are those per lane; 0 for an encoder. ``cache_bytes_per_token`` is the size of the
    key-value cache. ``max_length`` is the maximum length of a sequence on this server, in tokens;
    ``max_source_length`` that of an encoder-decoder's source, or 0 if it is the same.
    ``base_model`` is the bundle of a LoRA adapter; ``adapters`` are the models of its adapters.
    ``kernel_nodes`` covers the loaded graphs; ``native_kernels`` are its kernels with native nodes.
    """

    name: str
    version: str
    state: State
    failure: str = ""
    kind: Kind | None = None
    tasks: tuple[str, ...] = ()
    architecture: str = ""
    precision: str = ""
    license: str = ""
    parameters: int = 0
    vocabulary_size: int = 0
    hidden_size: int = 0
    max_length: int = 0
    max_source_length: int = 0
    source_language: str = ""
    target_language: str = ""
    languages: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    has_chat_template: bool = False
    parity: Parity | None = None
    slots: int = 0
    mask_token: str = ""
    embedding: "EmbeddingInfo | None" = None
    image: ImageSpec | None = None
    audio: AudioSpec | None = None
    kv_cache: str = ""
    cache_bytes_per_token: int = 0
    native_kernels: tuple[str, ...] = ()
    kernel_nodes: tuple["GraphKernelNodes", ...] = ()
    quality: tuple[Measurement, ...] = ()
    memory: "MemoryInfo | None" = None
    base_model: str = ""
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKernelNodes:
    """Node counts of one graph by kernel; see :class:`server.runtime.contract.KernelNodes`."""

    graph: str
    num_native: Mapping[str, int]
    num_standard: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """The host memory of a model, in bytes.

    ``weight_bytes`` counts every copy. ``cache_bytes`` is the cache's size with all slots full,
    ``cache_resident_bytes`` its size at the last check. ``working_bytes`` is an estimate of the
    memory of model runs. ``prefix_slots`` are those per lane, in addition to the slots.
    """

    weight_bytes: int
    cache_bytes: int
    cache_resident_bytes: int
    working_bytes: int
    prefix_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInfo:
    """Properties of a model's vectors.

    ``pooling`` is empty unless they are dense. ``truncations`` are the sizes to which they may be
    truncated. ``query_length`` and ``document_length`` are the maximum tokens of queries and
    documents; 0 unless the model is multi-vector. Only a model with several kinds of vectors has
    ``kinds``, all of them with the default first, and ``token_vector_size``.
    """

    kind: EmbeddingKind
    size: int
    is_normalized: bool
    pooling: str
    truncations: tuple[int, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    query_length: int = 0
    document_length: int = 0
    kinds: tuple[EmbeddingKind, ...] = ()
    token_vector_size: int = 0


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """What a served model's bundle has. Its files were written at ``written_seconds``, a time of
    ``time.time``.
    """

    manifest: Manifest
    chat_template: ChatTemplate | None
    written_seconds: float


def bundle_info(model: Model) -> BundleInfo:
    """Describes the bundle of a model."""
    return BundleInfo(model.manifest, model.chat_template, model.changes.newest_seconds)


def _max_source_length(model: Model) -> int:
    differs = model.max_source_length != model.max_length
    return model.max_source_length if differs and model.manifest.reads_texts else 0


def model_info(entry: Entry, config: ServerConfig) -> ModelInfo:
    """Describes one version of a model."""
    model = entry.model
    if model is None:
        return ModelInfo(
            name=entry.name, version=entry.version, state=entry.state, failure=entry.failure
        )
    manifest = model.manifest
    nodes = _kernel_nodes(model)
    is_encoder = manifest.kind == Kind.ENCODER
    decode = manifest.graphs.get("decode")
    return ModelInfo(
        name=manifest.name,
        version=manifest.version,
        state=entry.state,
        failure=entry.failure,
        kind=manifest.kind,
        tasks=tuple(task.value for task in manifest.tasks),
        architecture=manifest.architecture,
        precision=manifest.precision,
        license=manifest.license,
        parameters=manifest.dimensions.num_parameters,
        vocabulary_size=manifest.dimensions.vocabulary_size,
        hidden_size=manifest.dimensions.hidden_size,
        max_length=model.max_length,
        max_source_length=_max_source_length(model),
        source_language=manifest.source_language or "",
        target_language=manifest.target_language or "",
        languages=tuple(manifest.languages),
        labels=manifest.labels,
        has_chat_template=model.chat_template is not None,
        parity=model.parity,
        slots=0 if is_encoder else with_planned_slots(config, model).num_slots,
        mask_token=model.mask_token,
        embedding=_embedding_info(manifest.embedding),
        image=manifest.image,
        audio=manifest.audio,
        kv_cache="" if decode is None else manifest.kv_cache,
        cache_bytes_per_token=0 if decode is None else decode.cache_bytes_per_token,
        native_kernels=tuple(sorted({kernel for each in nodes for kernel in each.num_native})),
        kernel_nodes=nodes,
        quality=() if model.quality is None else model.quality.measurements,
        memory=None if model.adapter else _memory_info(model),
        base_model=bundle_of(manifest.name) if model.adapter else "",
        adapters=()
        if model.adapter
        else tuple(adapter_label(manifest.name, spec.name) for spec in manifest.adapters or ()),
    )


def _kernel_nodes(model: Model) -> tuple[GraphKernelNodes, ...]:
    return tuple(
        GraphKernelNodes(graph=graph, num_native=nodes.num_native, num_standard=nodes.num_standard)
        for graph, nodes in model.kernel_nodes.items()
    )


def _memory_info(model: Model) -> "MemoryInfo | None":
    plan = model.memory
    if plan is None:
        return None
    return MemoryInfo(
        weight_bytes=plan.weight_bytes,
        cache_bytes=plan.cache_bytes,
        cache_resident_bytes=model.caches.resident_bytes,
        working_bytes=plan.working_bytes,
        prefix_slots=plan.num_prefix_slots,
    )


def _embedding_info(embedding: Embedding | None) -> EmbeddingInfo | None:
    if embedding is None:
        return None
    lengths = embedding.multi_vector
    return EmbeddingInfo(
        kind=embedding.kind,
        size=embedding.size,
        is_normalized=embedding.is_normalized,
        pooling=embedding.pooling or "",
        truncations=tuple(embedding.truncations),
        prompts=embedding.prompts,
        default_prompt=embedding.default_prompt or "",
        query_length=0 if lengths is None else lengths.query_length,
        document_length=0 if lengths is None else lengths.document_length,
        kinds=embedding.kinds if len(embedding.kinds) > 1 else (),
        token_vector_size=embedding.token_vectors.size if embedding.token_vectors else 0,
    )
