"""Startup and shutdown of the server: load the models, serve, drain."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from server.addresses import check_grpc_address, host_and_port
from server.config import ServerConfig
from server.engine.requests.busy_lanes import BusyLanes
from server.errors import StartupError
from server.frontends.grpc.frontend import GrpcFrontend
from server.models.catalog import Catalog
from server.models.registry import Registry
from server.models.watch import Watch
from server.models.workers import build_engine
from server.runtime.contract import Backend
from server.runtime.kernels.library import LIBRARY, kernels_in_use
from server.runtime.ort.backend import OrtBackend
from server.runtime.thread_switching import ThreadSwitchingBackend
from server.service.context import ServiceContext
from server.service.service import Service
from server.service.threads import FairExecutor
from server.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_TOKENIZER_THREADS = 2
# How long a thread may run Python while others wait. The default, 5 ms, delays the event loop by
# that for each thread that tokenizes, builds a reply or runs a model.
SWITCH_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server. If a configured port is 0, the attributes have the port chosen.

    ``admin_port``: ``None`` without an admin listener. ``engine_failure`` gets the exception that
    ended a lane's thread.
    """

    port: int
    metrics_port: int
    admin_port: int | None
    catalog: Catalog
    engine_failure: "asyncio.Future[BaseException]"

    @property
    def registry(self) -> Registry:
        """The models that are served now."""
        return self.catalog.registry


@asynccontextmanager
async def running_server(config: ServerConfig) -> AsyncIterator[RunningServer]:
    """Serves until the block ends, then drains: new calls are refused, accepted calls finish.

    Raises:
        StartupError: a device or an address cannot be used; or no bundle can be served, and
            neither ``watch_seconds`` nor ``admin`` could load one later.
    """
    for address in filter(None, (config.listen, config.admin)):
        check_grpc_address(address)
    metrics_address = host_and_port(config.metrics)
    frontend = GrpcFrontend(config)
    busy = BusyLanes()
    backends = make_backends(config, busy)
    metrics = Metrics()
    metrics.on_kernels(report_kernels())
    engine_failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def publish_models(registry: Registry) -> None:
        await frontend.set_models(registry.names)

    async with AsyncExitStack() as stack:
        engine = build_engine(config, metrics, busy, engine_failure.set_result)
        stack.callback(engine.stop)
        catalog = Catalog(config, backends, engine, metrics, publish_models)
        stack.callback(catalog.close)
        watch = _watch(config, catalog)
        await catalog.load_all()
        if not catalog.registry.models and watch is None and config.admin is None:
            raise StartupError(f"no bundle in {config.bundles} can be served")
        tokenizing = stack.enter_context(
            ThreadPoolExecutor(max_workers=_TOKENIZER_THREADS, thread_name_prefix="tokenize")
        )
        threads = FairExecutor(tokenizing, _TOKENIZER_THREADS, config.max_tokenizing)
        context = ServiceContext(config, catalog, engine, metrics, threads)
        stack.push_async_callback(frontend.drain)
        await frontend.start(Service(context))
        metrics_server = metrics.serve(*metrics_address)
        stack.callback(metrics_server.stop)
        if watch is not None:
            task = asyncio.create_task(watch.run())
            stack.callback(task.cancel)
        await frontend.set_serving()
        stack.push_async_callback(frontend.set_not_serving)
        engine_failure.add_done_callback(
            lambda _: asyncio.ensure_future(frontend.set_not_serving())
        )
        yield RunningServer(
            frontend.port, metrics_server.port, frontend.admin_port, catalog, engine_failure
        )


def _watch(config: ServerConfig, catalog: Catalog) -> Watch | None:
    if config.watch_seconds is None:
        return None
    return Watch(catalog, config.bundles, config.watch_seconds)


def make_backends(config: ServerConfig, busy: BusyLanes) -> tuple[Backend, ...]:
    """One backend per device.

    On a CPU, a single active lane uses all threads, and several active lanes divide them. On
    other devices, every run has the same number of threads.

    Raises:
        StartupError: a device is unknown, or this installation cannot use it.
    """
    threads_per_lane = max(1, config.num_threads // config.num_lanes_total)

    def make(device: str, num_threads: int) -> OrtBackend:
        return OrtBackend(
            device,
            num_threads,
            has_device_memory=config.has_device_memory,
            records=config.has_buckets,
        )

    if config.devices != ("cpu",) or config.num_lanes == 1:
        return tuple(make(device, threads_per_lane) for device in config.devices)
    per_lane, all_cores = make("cpu", threads_per_lane), make("cpu", config.num_threads)
    return (
        ThreadSwitchingBackend(
            per_lane, all_cores, lambda: busy.has_at_most_one, config.max_duplicated_bytes
        ),
    )


def report_kernels() -> dict[str, bool]:
    """Logs which native kernels run on this CPU; returns it by the kernel's name."""
    in_use = kernels_in_use()
    names = ", ".join(name for name, is_used in in_use.items() if is_used)
    if names:
        log.info("native kernels: %s", names)
    elif LIBRARY.exists():
        log.warning("native kernels: none, they need AVX2: ONNX Runtime's own operators run")
    else:
        log.warning("native kernels: none, this installation has no %s", LIBRARY.name)
    return in_use


async def serve(config: ServerConfig) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit status: 0, or 1 if the engine died."""
    sys.setswitchinterval(SWITCH_SECONDS)
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
        running.engine_failure.add_done_callback(lambda _: stop.set())
        # Exempts the loaded models from garbage collection: a full collection would pause every
        # stream for 36 ms.
        gc.collect()
        gc.freeze()
        await stop.wait()
        return 1 if running.engine_failure.done() else 0
