"""What every call shares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from server.config import ServerConfig
from server.engine.engine import Engine
from server.metrics import Metrics
from server.models.catalog import Catalog
from server.models.registry import Registry
from server.rpc.caller import Caller
from server.rpc.threads import Threads

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running server. ``threads`` run what would block the event loop."""

    config: ServerConfig
    catalog: Catalog
    engine: Engine
    metrics: Metrics
    threads: Threads

    @property
    def registry(self) -> Registry:
        """The models that are served now: ask once in a call."""
        return self.catalog.registry

    async def in_thread(self, function: Callable[[], T], caller: Caller | None = None) -> T:
        """What ``function`` returns.

        With a ``caller``, whose request is not accepted yet, raises ``ServeError`` if it is too
        late for them, or too much waits.
        """
        if caller is None:
            return await self.threads.run(function)
        return await self.threads.run_bounded(function, caller.deadline)
