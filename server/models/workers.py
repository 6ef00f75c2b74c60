"""From loaded models to an engine: slots, limits and workers, one set per lane."""

import time
from collections.abc import Callable
from typing import Any

from model.bundle import ATTEND
from model.config import Kind
from server.config import ServerConfig
from server.engine.cache.slot_cache import Capacity
from server.engine.encoder import BatchLimits, Encoder
from server.engine.engine import Engine
from server.engine.generator import Generator
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.device_sampler import DeviceSampler, bind_take, shape_of
from server.engine.lane import Worker
from server.engine.observer import Observer
from server.engine.requests.admission import AdmissionLimits, ClientRate
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.sequence import Cost
from server.engine.runner import ModelRunner
from server.engine.scheduler import Limits
from server.models.registry import Model, Replica

# The clock of deadlines and times, in seconds; handlers use the same.
clock = time.monotonic


def build_engine(
    config: ServerConfig,
    observer: Observer,
    busy: BusyLanes,
    on_death: Callable[[BaseException], None],
) -> Engine:
    """Starts an engine without models. It is to know them by ``Model.key``."""
    return Engine(
        num_lanes=config.num_all_lanes,
        num_devices=len(config.devices),
        observer=observer,
        busy=busy,
        single_lane_max_sequences=config.single_lane_max_sequences,
        on_death=on_death,
        client_rate=_client_rate(config),
    )


def make_workers(model: Model, config: ServerConfig, observer: Observer) -> list[Worker[Any]]:
    """The workers for a model, one for each lane; those of a device stand together."""
    return [
        make_worker(model, replica, config, observer)
        for replica in model.replicas
        for _ in range(config.num_lanes)
    ]


def make_worker(
    model: Model, replica: Replica, config: ServerConfig, observer: Observer
) -> Worker[Any]:
    """The worker for a model in one lane of the replica's device, with its own slots."""
    manifest, graphs = model.manifest, replica.graphs
    if manifest.kind == Kind.ENCODER:
        limits = BatchLimits(config.max_padded_tokens)
        spec, graph = manifest.graphs["encode"], graphs["encode"]
        return Encoder(manifest.name, spec, graph, limits, clock, observer)
    spec = manifest.graphs["decode"]
    capacity = Capacity(config.num_slots, model.max_length, model.max_length)
    shape = shape_of(spec, manifest.special_tokens.suppressed)
    runner = ModelRunner(
        spec,
        graphs["decode"],
        graphs.get("encode"),
        capacity,
        manifest.special_tokens.suppressed,
        graphs.get(ATTEND),
        replica.memory,
        Buckets.of(capacity.num_slots, capacity.max_length) if config.has_buckets else None,
        bind_take(replica.load_model, shape) if config.keeps_logits else None,
    )
    step = Limits(config.num_slots, config.max_batched_tokens)
    chooser = DeviceSampler(replica.load_model, shape) if config.samples_on_device else None
    return Generator(manifest.name, runner, capacity, step, clock, observer, chooser)


def capacity_of(model: Model, config: ServerConfig) -> AdmissionLimits:
    """What is accepted at a time: what runs, and what may wait."""
    if model.manifest.kind == Kind.ENCODER:
        num_tokens = config.max_padded_tokens * config.num_all_lanes
        most = Cost(config.max_queued_texts, config.max_queued_text_tokens)
        return AdmissionLimits(most, Cost(num_tokens, num_tokens))
    num_slots = config.num_slots * config.num_all_lanes
    # A row's source counts as well as its target.
    parallel = Cost(num_slots, 2 * num_slots * model.max_length)
    return AdmissionLimits(parallel + Cost(config.max_queue, config.max_queue_tokens), parallel)


def _client_rate(config: ServerConfig) -> ClientRate | None:
    """None where there is no limit."""
    per_second = config.client_tokens_per_second
    if per_second is None:
        return None
    return ClientRate(per_second, config.client_burst_tokens or 60 * per_second)
