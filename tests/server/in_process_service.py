"""The service in this process, without a front end."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from server.app import make_backends
from server.config import ServerConfig
from server.engine.requests.busy_lanes import BusyLanes
from server.models.catalog import Catalog
from server.models.registry import Registry
from server.models.workers import build_engine
from server.service.context import ServiceContext
from server.service.serving_state import ServingState
from server.service.threads import FairExecutor
from server.telemetry.metrics import Metrics


@asynccontextmanager
async def service_context(bundles: Path, **options: Any) -> AsyncIterator[ServiceContext]:
    """The components of a server of all models in ``bundles``."""
    config = ServerConfig(bundles=bundles, **options)
    busy, metrics = BusyLanes(), Metrics()
    engine = build_engine(config, metrics, busy, _fail)
    try:
        catalog = Catalog(config, make_backends(config, busy), engine, metrics, _ignore)
        await catalog.load_all()
        with ThreadPoolExecutor(1) as pool:
            threads = FairExecutor(pool, 1, config.max_tokenizing)
            state = ServingState(engine)
            yield ServiceContext(config, catalog, engine, metrics, threads, state)
    finally:
        engine.stop()
        catalog.close()


def _fail(error: BaseException) -> None:
    raise error


async def _ignore(_: Registry) -> None:
    """Nobody needs to know which models are served."""
