"""Builds the engine, and a model's workers: one per lane, with slots and limits."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from model.bundle import (
    ATTEND,
    ATTEND_ENCODE,
    ENCODE_IMAGES,
    BundleError,
    EmbeddingKind,
    Manifest,
)
from model.config import Kind
from server.config import ServerConfig
from server.engine.cache.slot_tensors import Capacity, SlotTensors, can_hold_prefixes
from server.engine.encoder_attention import EncoderAttention
from server.engine.encoder_batch import BatchLimits
from server.engine.encoder_runner import EncoderRunner
from server.engine.encoder_worker import EncoderWorker
from server.engine.engine import Engine
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.buckets import Buckets, TextBuckets
from server.engine.gpu.device_logits import LogitsReader
from server.engine.gpu.device_sampler import DeviceSampler, logits_spec
from server.engine.gpu.padded_encoder import PaddedEncoder, can_be_padded
from server.engine.gpu.padded_prompts import (
    MAX_PROMPT_TOKENS,
    PaddedPrompts,
    has_recorded_prompts,
)
from server.engine.gpu.padded_sources import (
    MAX_SOURCE_TOKENS,
    PaddedSources,
    has_recorded_sources,
)
from server.engine.gpu.recorded_sampler import RecordedSampler
from server.engine.gpu.sampler_inputs import LogitsSpec
from server.engine.lane import Worker
from server.engine.model_runner import ModelRunner
from server.engine.observer import Observer
from server.engine.prompt_images import ImageEncoder
from server.engine.requests.admission import AdmissionLimits, ClientRate
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import Cost
from server.engine.scheduler import StepLimits
from server.models.memory_budget import max_padded_tokens
from server.models.registry import Model, Replica
from server.models.suppressed_tokens import suppressed_tokens
from server.runtime.contract import Graph

log = logging.getLogger(__name__)

# The clock of deadlines and timings, in seconds. All callers of the engine must use it.
clock = time.monotonic


def build_engine(
    config: ServerConfig,
    observer: Observer,
    busy: BusyLanes,
    on_death: Callable[[BaseException], None],
    on_stuck: Callable[[], None] = lambda: None,
) -> Engine:
    """Starts an engine without models. Models are added by ``Model.key``."""
    return Engine(
        num_lanes=config.num_lanes_total,
        num_devices=len(config.devices),
        observer=observer,
        busy=busy,
        single_lane_max_sequences=config.single_lane_max_sequences,
        on_death=on_death,
        client_rate=_client_rate(config),
        stuck_seconds=config.stuck_seconds,
        on_stuck=on_stuck,
    )


def make_workers(model: Model, config: ServerConfig, observer: Observer) -> list[Worker[Any]]:
    """Makes a model's workers, one per lane; the lanes of a device are adjacent."""
    return [
        make_worker(model, replica, config, observer)
        for replica in model.replicas
        for _ in range(config.num_lanes)
    ]


def make_worker(
    model: Model, replica: Replica, config: ServerConfig, observer: Observer
) -> Worker[Any]:
    """Makes a model's worker for one lane of the replica's device, with its own slots.

    Raises:
        BundleError: the model reads images in prompts, and the device is not a CPU.
    """
    if model.manifest.kind == Kind.ENCODER:
        return _encoder_worker(model, replica, config, observer)
    manifest, graphs = model.manifest, replica.graphs
    if manifest.image_prompt is not None and config.has_separate_memory:
        raise BundleError(f"{manifest.label}: images in prompts are supported on CPUs only")
    spec = manifest.graphs["decode"]
    capacity = Capacity(
        config.num_slots,
        model.max_length,
        model.max_source_length,
        config.num_prefix_slots if can_hold_prefixes(spec.states) else 0,
    )
    suppressed = suppressed_tokens(manifest)
    logits = logits_spec(spec, suppressed)
    reader = LogitsReader(replica.load_model, logits) if config.keeps_logits_on_device else None
    runner = ModelRunner(
        spec,
        graphs["decode"],
        graphs.get("encode"),
        capacity,
        suppressed,
        graphs.get(ATTEND),
        _encoder_attention(manifest, graphs),
        memory=replica.memory,
        buckets=Buckets.of(capacity.num_slots, capacity.max_length) if config.has_buckets else None,
        reader=reader,
        model=manifest.name,
        steps=replica.steps,
    )
    if ENCODE_IMAGES in graphs:
        runner.images = ImageEncoder(graphs[ENCODE_IMAGES], runner.progress)
    if config.has_buckets and reader is not None:
        try:
            runner.prompts = _padded_prompts(model, replica, config, runner.cache, reader)
            runner.sources = _padded_sources(model, replica, config, runner.cache)
        except MemoryError:
            log.warning("%s: no memory is left to record prompts or sources", manifest.label)
    step = StepLimits(config.num_slots, config.max_batched_tokens)
    sampler = _device_sampler(replica, logits, runner.buckets) if config.samples_on_device else None
    return GenerationWorker(
        *(manifest.name, runner, capacity, step, clock, observer, sampler),
        allows_drafts=config.allows_drafts,
    )


def _padded_prompts(
    model: Model, replica: Replica, config: ServerConfig, cache: SlotTensors, reader: LogitsReader
) -> PaddedPrompts | None:
    """Makes recorded runs over prompts; None if the graph does not support them."""
    spec = model.manifest.graphs["decode"]
    if model.manifest.kind != Kind.DECODER or not has_recorded_prompts(spec):
        return None
    most = min(MAX_PROMPT_TOKENS, config.max_batched_tokens)
    buckets = TextBuckets.of(most, model.max_length, config.num_slots)
    return PaddedPrompts(spec, replica.graphs["decode"], cache, buckets, replica.memory, reader)


def _padded_sources(
    model: Model, replica: Replica, config: ServerConfig, cache: SlotTensors
) -> PaddedSources | None:
    """Makes recorded runs over sources; None if the graph does not support them."""
    spec = model.manifest.graphs.get("encode")
    if spec is None or not has_recorded_sources(spec):
        return None
    most = min(MAX_SOURCE_TOKENS, config.max_batched_tokens)
    buckets = TextBuckets.of(most, model.max_source_length, config.num_slots)
    size = model.manifest.dimensions.vocabulary_size
    return PaddedSources(replica.graphs["encode"], cache, buckets, replica.memory, size)


def _device_sampler(replica: Replica, logits: LogitsSpec, buckets: Buckets | None) -> DeviceSampler:
    """Makes the sampler. ``buckets`` are those of recorded decode steps; None records nothing."""
    recorded = None
    if buckets is not None:
        recorded = RecordedSampler(replica.load_repeated, logits, buckets.rows, replica.memory)
    return DeviceSampler(replica.load_model, logits, recorded)


def _encoder_worker(
    model: Model, replica: Replica, config: ServerConfig, observer: Observer
) -> EncoderWorker:
    manifest, graphs = model.manifest, replica.graphs
    runner = EncoderRunner(
        manifest.graphs["encode"],
        graphs["encode"],
        _encoder_attention(manifest, graphs),
        _padded_encoder(model, replica, config),
        is_sparse=manifest.embedding_kind == EmbeddingKind.SPARSE,
    )
    limits = BatchLimits(max_padded_tokens(manifest, config))
    return EncoderWorker(manifest.name, runner, limits, clock, observer)


def _padded_encoder(model: Model, replica: Replica, config: ServerConfig) -> PaddedEncoder | None:
    """Makes recorded runs of an encoder; None if config or graph does not support them."""
    manifest, spec = model.manifest, model.manifest.graphs["encode"]
    if not config.has_buckets or not can_be_padded(spec):
        return None
    return PaddedEncoder(
        spec,
        replica.graphs["encode"],
        TextBuckets.of(max_padded_tokens(manifest, config), model.max_length),
        replica.memory,
        manifest.dimensions.vocabulary_size,
    )


def _encoder_attention(manifest: Manifest, graphs: Mapping[str, Graph]) -> EncoderAttention | None:
    """The encoder's attention graph; None if the bundle has none."""
    graph = graphs.get(ATTEND_ENCODE)
    return None if graph is None else EncoderAttention(manifest.graphs[ATTEND_ENCODE], graph)


def admission_limits(model: Model, config: ServerConfig) -> AdmissionLimits:
    """The work that the engine accepts for a model: running jobs and a queue."""
    if model.manifest.kind == Kind.ENCODER:
        num_tokens = max_padded_tokens(model.manifest, config) * config.num_lanes_total
        max_accepted = Cost(config.max_queued_texts, config.max_queued_text_tokens)
        return AdmissionLimits(max_accepted, Cost(num_tokens, num_tokens))
    num_slots = config.num_slots * config.num_lanes_total
    max_running = Cost(num_slots, num_slots * (model.max_source_length + model.max_length))
    max_accepted = max_running + Cost(config.max_queue, config.max_queue_tokens)
    return AdmissionLimits(max_accepted, max_running)


def _client_rate(config: ServerConfig) -> ClientRate | None:
    """The token rate per client; None means no limit. The default burst is one minute of tokens."""
    per_second = config.client_tokens_per_second
    if per_second is None:
        return None
    return ClientRate(per_second, config.client_burst_tokens or 60 * per_second)
