"""The server as a whole: load, serve, drain."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.triune.v1 import inference_pb2, inference_pb2_grpc, models_pb2, models_pb2_grpc
from server.backend.base import Backend
from server.backend.ort import OrtBackend
from server.backend.paired import PairedBackend
from server.config import ServerConfig
from server.engine.build import build_engine, capacity_of, make_workers
from server.engine.busy import BusyLanes
from server.errors import StartupError
from server.metrics import Metrics
from server.registry import Registry, load_bundles
from server.rpc.context import Services
from server.rpc.inference import InferenceServicer
from server.rpc.models import ModelServicer
from server.rpc.threads import Threads

log = logging.getLogger(__name__)

SERVICE_NAMES = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    models_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name,
    health.SERVICE_NAME,
    reflection.SERVICE_NAME,
)
_OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers. Ports are the real ones, where 0 was asked for."""

    port: int
    metrics_port: int
    registry: Registry
    dead: "asyncio.Future[BaseException]"


@asynccontextmanager
async def running_server(config: ServerConfig) -> AsyncIterator[RunningServer]:
    """Serves until the block ends; then drains: what was accepted finishes.

    Raises:
        StartupError: the device or an address cannot be had, or no bundle can be served.
    """
    busy = BusyLanes()
    backend = make_backend(config, busy)
    registry = load_bundles(config.bundles, backend, config.max_length)
    if not registry.models:
        raise StartupError(f"no bundle in {config.bundles} can be served")
    metrics = Metrics()
    dead: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    engine = build_engine(config, metrics, busy, dead.set_result)
    for model in registry.models:
        engine.add(model.key, make_workers(model, config, metrics), capacity_of(model, config))
    server = grpc.aio.server(options=_OPTIONS)
    health_servicer = health.aio.HealthServicer()
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize") as tokenizing:
        services = Services(
            config, registry, engine, metrics, Threads(tokenizing, config.max_tokenizing)
        )
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(
            InferenceServicer(services), server
        )
        models_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(services), server)
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        reflection.enable_server_reflection(SERVICE_NAMES, server)
        port = _bind(server, config.listen)
        metrics_server = metrics.serve(*_host_and_port(config.metrics))
        await server.start()
        for name in ("", *SERVICE_NAMES[:2]):
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        dead.add_done_callback(lambda _: health_servicer.enter_graceful_shutdown())
        try:
            yield RunningServer(port, metrics_server.port, registry, dead)
        finally:
            await health_servicer.enter_graceful_shutdown()
            # Refuses new calls at once, cancels what is left after the grace period.
            await server.stop(config.grace_seconds)
            engine.stop()
            metrics_server.stop()


def make_backend(config: ServerConfig, busy: BusyLanes) -> Backend:
    """Runs with all threads where there is one lane, else as many as are alone."""
    wide = OrtBackend(config.device, config.num_threads)
    if config.num_lanes == 1:
        return wide
    narrow = OrtBackend(config.device, max(1, config.num_threads // config.num_lanes))
    return PairedBackend(narrow, wide, lambda: busy.is_one, config.max_paired_bytes)


async def serve(config: ServerConfig) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit status: 0, or 1 if the engine died."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        log.info("draining: no new calls, %g s for those in flight", config.grace_seconds)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with running_server(config) as running:
        names = ", ".join(model.key for model in running.registry.models)
        log.info(
            "serving %s: gRPC on port %d, metrics on port %d",
            names,
            running.port,
            running.metrics_port,
        )
        running.dead.add_done_callback(lambda _: stop.set())
        await stop.wait()
        return 1 if running.dead.done() else 0


def _bind(server: grpc.aio.Server, address: str) -> int:
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartupError(f"cannot listen on {address}: {error}") from error


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise StartupError(f"address {address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
