"""The server as a whole: load, serve, drain."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.triune.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2_grpc,
    models_pb2_grpc,
)
from server.config import ServerConfig
from server.engine.requests.busy_lanes import BusyLanes
from server.errors import StartupError
from server.frontends.grpc.admin import AdminServicer
from server.frontends.grpc.health import INFERENCE, MODELS, Health
from server.frontends.grpc.inference import InferenceServicer
from server.frontends.grpc.listeners import check_admin, make_server, open_port
from server.frontends.grpc.models import ModelServicer
from server.models.catalog import Catalog
from server.models.registry import Registry
from server.models.watch import Watch
from server.models.workers import build_engine
from server.runtime.contract import Backend
from server.runtime.ort.backend import OrtBackend
from server.runtime.thread_switching import ThreadSwitchingBackend
from server.service.context import Services
from server.service.threads import Threads
from server.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

SERVICE_NAMES = (
    INFERENCE,
    MODELS,
    health.SERVICE_NAME,
    reflection.SERVICE_NAME,
)
ADMIN_SERVICE_NAMES = (
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
    MODELS,
    reflection.SERVICE_NAME,
)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers. Ports are the real ones, where 0 was asked for.

    ``admin_port``: None if there is no such listener.
    """

    port: int
    metrics_port: int
    admin_port: int | None
    catalog: Catalog
    dead: "asyncio.Future[BaseException]"

    @property
    def registry(self) -> Registry:
        """The models that are served now."""
        return self.catalog.registry


@asynccontextmanager
async def running_server(config: ServerConfig) -> AsyncIterator[RunningServer]:
    """Serves until the block ends; then drains: what was accepted finishes.

    Raises:
        StartupError: the device or an address cannot be had, or no bundle can be served and
            none could come later.
    """
    check_admin(config)
    busy = BusyLanes()
    backends = make_backends(config, busy)
    metrics, health = Metrics(), Health()
    dead: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    async with AsyncExitStack() as stack:
        engine = build_engine(config, metrics, busy, dead.set_result)
        stack.callback(engine.stop)
        catalog = Catalog(config, backends, engine, metrics, health.follow)
        stack.callback(catalog.close)
        watch = _watch(config, catalog)
        await catalog.load_all()
        if not catalog.registry.models and watch is None and config.admin is None:
            raise StartupError(f"no bundle in {config.bundles} can be served")
        tokenizing = stack.enter_context(
            ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
        )
        services = Services(
            config, catalog, engine, metrics, Threads(tokenizing, config.max_tokenizing)
        )
        server, port = _main_listener(services, health)
        admin, admin_port = _admin_listener(services)
        metrics_server = metrics.serve(*_host_and_port(config.metrics))
        stack.callback(metrics_server.stop)
        listeners = [listener for listener in (server, admin) if listener is not None]
        for listener in listeners:
            await listener.start()
        stack.push_async_callback(_drain, listeners, config.grace_seconds)
        if watch is not None:
            task = asyncio.create_task(watch.run())
            stack.callback(task.cancel)
        await health.open()
        stack.push_async_callback(health.close)
        dead.add_done_callback(lambda _: asyncio.ensure_future(health.close()))
        yield RunningServer(port, metrics_server.port, admin_port, catalog, dead)


async def _drain(listeners: list[grpc.aio.Server], grace_seconds: float) -> None:
    """All refuse new calls at once; what is left after the grace period is cancelled."""
    await asyncio.gather(*(listener.stop(grace_seconds) for listener in listeners))


def _main_listener(services: Services, health: Health) -> tuple[grpc.aio.Server, int]:
    config = services.config
    server = make_server(config, config.tokens)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(InferenceServicer(services), server)
    models_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(services), server)
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    reflection.enable_server_reflection(SERVICE_NAMES, server)
    return server, open_port(server, config.listen, config.tls)


def _admin_listener(services: Services) -> tuple[grpc.aio.Server | None, int | None]:
    config = services.config
    if config.admin is None:
        return None, None
    server = make_server(config, config.tokens_of_admin)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(services), server)
    models_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(services), server)
    reflection.enable_server_reflection(ADMIN_SERVICE_NAMES, server)
    return server, open_port(server, config.admin, config.tls)


def _watch(config: ServerConfig, catalog: Catalog) -> Watch | None:
    if config.watch_seconds is None:
        return None
    return Watch(catalog, config.bundles, config.watch_seconds)


def make_backends(config: ServerConfig, busy: BusyLanes) -> tuple[Backend, ...]:
    """One for each device.

    The lanes of the one CPU there is run with all threads while they are alone. On any other
    device a run has as many as there are for it.

    Raises:
        StartupError: a device is unknown, or this installation cannot use it.
    """
    num_threads = max(1, config.num_threads // config.num_all_lanes)

    def make(device: str, num_threads: int) -> OrtBackend:
        return OrtBackend(
            device,
            num_threads,
            has_device_memory=config.has_device_memory,
            records=config.has_buckets,
        )

    if config.devices != ("cpu",) or config.num_lanes == 1:
        return tuple(make(device, num_threads) for device in config.devices)
    narrow, wide = make("cpu", num_threads), make("cpu", config.num_threads)
    return (ThreadSwitchingBackend(narrow, wide, lambda: busy.is_one, config.max_paired_bytes),)


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
            "serving %s: gRPC on port %d, metrics on port %d, admin on %s",
            names or "no model yet",
            running.port,
            running.metrics_port,
            "no port" if running.admin_port is None else f"port {running.admin_port}",
        )
        running.dead.add_done_callback(lambda _: stop.set())
        # What there is by now stays. To look through all of it again, as the collector does now and
        # then, would keep every stream waiting: 36 ms.
        gc.collect()
        gc.freeze()
        await stop.wait()
        return 1 if running.dead.done() else 0


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise StartupError(f"address {address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
