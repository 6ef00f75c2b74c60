"""A server in this process, on free loopback ports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from server.app import RunningServer, running_server
from server.config import ServerConfig

CLASSIFIER = "tiny-classifier"


@asynccontextmanager
async def serving(bundles: Path, **options: Any) -> AsyncIterator[RunningServer]:
    config = ServerConfig(
        bundles=bundles,
        listen="127.0.0.1:0",
        metrics="127.0.0.1:0",
        admin="127.0.0.1:0",
        **options,
    )
    async with running_server(config) as running:
        yield running
