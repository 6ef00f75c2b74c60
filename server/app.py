"""Startup and shutdown of the server: load the models, serve, drain."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from model.bundle import MANIFEST_FILE
from server.addresses import check_grpc_address, host_and_port
from server.config import ServerConfig
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.watchdog import StuckLaneError
from server.errors import StartupError
from server.frontends.grpc.frontend import GrpcFrontend
from server.frontends.http.frontend import HttpFrontend
from server.frontends.http.metrics_listener import MetricsListener
from server.models.catalog import Catalog
from server.models.garbage import freeze_loaded_objects
from server.models.memory_keeper import MemoryKeeper
from server.models.registry import Registry
from server.models.watch import Watch
from server.models.workers import build_engine
from server.niceness import Niceness, add_niceness
from server.runtime.contract import Backend
from server.runtime.kernels.library import LIBRARY, kernels_in_use
from server.runtime.ort.backend import OrtBackend
from server.runtime.thread_switching import ThreadSwitchingBackend
from server.service.context import ServiceContext
from server.service.service import Service
from server.service.serving_state import ServingState
from server.service.threads import FairExecutor
from server.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_TOKENIZER_THREADS = 2
# Python's switch interval: how long a thread may hold the interpreter lock while others wait. The
# default of 5 ms delays the event loop by 5 ms per thread that tokenizes, builds a reply or runs a
# model.
SWITCH_SECONDS = 0.001
# A server with a stuck lane exits after this many seconds, even if its event loop hangs, too.
_MAX_EXIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server. If a configured port is 0, its attribute is the port that was chosen.

    ``admin_port`` and ``http_port`` are ``None`` if that listener is off. ``engine_failure``
    receives the exception that ended a lane's thread.
    """

    port: int
    metrics_port: int
    admin_port: int | None
    http_port: int | None
    catalog: Catalog
    engine_failure: "asyncio.Future[BaseException]"

    @property
    def registry(self) -> Registry:
        """The models that are served now."""
        return self.catalog.registry


@asynccontextmanager
async def running_server(config: ServerConfig) -> AsyncIterator[RunningServer]:
    """Serves until the block ends, then drains: rejects new calls and finishes accepted ones.

    Raises:
        StartupError: a device, an address, a certificate or a token file cannot be used; or no
            bundle can be served, and neither ``watch_seconds`` nor ``admin`` could load one later.
    """
    for address in filter(None, (config.listen, config.admin)):
        check_grpc_address(address)
    host_and_port(config.metrics)
    if config.http is not None:
        host_and_port(config.http)
    metrics = Metrics()
    frontend = GrpcFrontend(config)
    http = HttpFrontend(config, metrics)
    engine_failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def publish_models(registry: Registry) -> None:
        await frontend.set_models(registry.names)

    async with AsyncExitStack() as stack:
        # Configuration errors are reported before models load, which takes long.
        # No client can connect until loading is done.
        stack.callback(http.close)
        frontend.prepare()
        http.prepare()
        metrics_listener = MetricsListener(config.metrics, metrics)
        stack.callback(metrics_listener.close)
        busy = BusyLanes()
        backends = make_backends(config, busy)
        metrics.on_kernels(report_kernels())
        engine = build_engine(config, metrics, busy, engine_failure.set_result, _exit_soon)
        stack.callback(engine.stop)
        catalog = Catalog(config, backends, engine, metrics, publish_models)
        stack.callback(catalog.close)
        watch = _watch(config, catalog)
        await catalog.load_all()
        if not catalog.registry.models and watch is None and config.admin is None:
            raise StartupError(_reason_for_no_model(config, catalog.registry))
        tokenizing = stack.enter_context(
            ThreadPoolExecutor(
                max_workers=_TOKENIZER_THREADS,
                thread_name_prefix="tokenize",
                initializer=add_niceness,
                initargs=(Niceness.TOKENIZER,),
            )
        )
        threads = FairExecutor(tokenizing, _TOKENIZER_THREADS, config.max_tokenizing)
        state = ServingState(engine)
        service = Service(ServiceContext(config, catalog, engine, metrics, threads, state))
        # Prometheus reads metrics until the last call has ended.
        stack.push_async_callback(metrics_listener.stop)
        stack.push_async_callback(_drain, frontend, http)
        await frontend.start(service)
        await http.start(service)
        await metrics_listener.start()
        keeper = MemoryKeeper(config, catalog, engine, busy, metrics)
        stack.callback(asyncio.create_task(keeper.run()).cancel)
        if watch is not None:
            task = asyncio.create_task(watch.run())
            stack.callback(task.cancel)

        async def set_not_serving() -> None:
            state.is_serving = False
            await frontend.set_not_serving(is_live=engine.is_alive)

        state.is_serving = True
        await frontend.set_serving()
        stack.push_async_callback(set_not_serving)
        engine_failure.add_done_callback(lambda _: asyncio.ensure_future(set_not_serving()))
        yield RunningServer(
            port=frontend.port,
            metrics_port=metrics_listener.port,
            admin_port=frontend.admin_port,
            http_port=http.port,
            catalog=catalog,
            engine_failure=engine_failure,
        )


async def _drain(grpc: GrpcFrontend, http: HttpFrontend) -> None:
    """Drains both front ends at once, with the same grace period."""
    await asyncio.gather(grpc.drain(), http.drain())


def _port_name(port: int | None) -> str:
    return "no port" if port is None else f"port {port}"


def _reason_for_no_model(config: ServerConfig, registry: Registry) -> str:
    if registry.entries:  # the log says why each was refused
        return f"no bundle in {config.bundles} can be served"
    return f"no bundle in {config.bundles}: a bundle is a folder NAME/VERSION with {MANIFEST_FILE}"


def _watch(config: ServerConfig, catalog: Catalog) -> Watch | None:
    if config.watch_seconds is None:
        return None
    return Watch(catalog, config.bundles, config.watch_seconds)


def make_backends(config: ServerConfig, busy: BusyLanes) -> tuple[Backend, ...]:
    """Makes one backend per device.

    On a CPU with several lanes, longer runs use all threads while a single lane is active; several
    active lanes divide the threads. On other devices, each lane always has its share of threads.

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
    """Logs the native kernels that run on this CPU; returns, by kernel name, whether each does."""
    in_use = kernels_in_use()
    names = ", ".join(name for name, is_used in in_use.items() if is_used)
    if names:
        log.info("native kernels: %s", names)
    elif LIBRARY.exists():
        log.warning(
            "native kernels: none, they need AVX2 or SDOT: ONNX Runtime's own operators run"
        )
    else:
        log.warning("native kernels: none, this installation has no %s", LIBRARY.name)
    return in_use


async def serve(config: ServerConfig) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit status: 0, or 1 if the engine died.

    A signal during the start ends it: nobody has called yet. Ends the process itself if a lane is
    stuck or a bundle is being loaded: the thread would block a normal exit.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()
        if starting is None:
            log.info("draining: no new calls, %g s for those in flight", config.grace_seconds)
        else:
            log.info("stopping during the start")
            starting.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        async with running_server(config) as running:
            starting = None
            _log_ready(running)
            running.engine_failure.add_done_callback(lambda _: stop.set())
            freeze_loaded_objects()
            await stop.wait()
            failure = running.engine_failure.result() if running.engine_failure.done() else None
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        _exit_at_once(0)
    status = 0 if failure is None else 1
    if isinstance(failure, StuckLaneError) or running.catalog.is_loading:
        _exit_at_once(status)
    return status


def _log_ready(running: RunningServer) -> None:
    names = ", ".join(model.key for model in running.registry.models)
    log.info(
        "serving %s: gRPC on port %d, metrics on port %d, admin on %s, HTTP on %s",
        names or "no model yet",
        running.port,
        running.metrics_port,
        *(_port_name(port) for port in (running.admin_port, running.http_port)),
    )


def _exit_soon() -> None:
    """Ends the process even if the event loop hangs too. Called by the watchdog's thread."""
    timer = threading.Timer(_MAX_EXIT_SECONDS, _exit_at_once, [1])
    timer.daemon = True
    timer.start()


def _exit_at_once(status: int) -> NoReturn:
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)
