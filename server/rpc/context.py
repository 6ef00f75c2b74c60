"""What every call shares."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from server.config import ServerConfig
from server.engine.engine import Engine
from server.metrics import Metrics
from server.registry import Registry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running server. ``tokenizing`` runs what would block the event loop."""

    config: ServerConfig
    registry: Registry
    engine: Engine
    metrics: Metrics
    tokenizing: Executor

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.tokenizing, function)
