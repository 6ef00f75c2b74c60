"""The parts of a running server that every call uses."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from server.config import ServerConfig
from server.engine.engine import Engine
from server.models.catalog import Catalog
from server.models.registry import Registry
from server.service.caller import Caller
from server.service.threads import Threads, check_deadline
from server.telemetry.metrics import Metrics

T = TypeVar("T")

# Shorter texts are tokenized on the event loop, in about 0.5 ms at most. Handing them to a thread
# and waking up again costs as much as 32 tokens when the cores are busy.
MAX_INLINE_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """``threads`` run whatever would block the event loop."""

    config: ServerConfig
    catalog: Catalog
    engine: Engine
    metrics: Metrics
    threads: Threads

    @property
    def registry(self) -> Registry:
        """The models served now. A snapshot: read it once per call."""
        return self.catalog.registry

    async def in_thread(self, function: Callable[[], T], caller: Caller | None = None) -> T:
        """Runs ``function`` in a thread and returns its result.

        Args:
            function: blocks.
            caller: set for requests that are not admitted yet.

        Raises:
            ServeError: the caller's deadline passed, or too many functions wait already.
        """
        if caller is None:
            return await self.threads.run(function)
        return await self.threads.run_bounded(function, caller.deadline)

    async def tokenized(self, texts: Iterable[str], function: Callable[[], T], caller: Caller) -> T:
        """Runs ``function``, which tokenizes ``texts``: inline if they are short, else in a thread.

        Raises:
            ServeError: as :meth:`in_thread`.
        """
        if sum(map(len, texts)) > MAX_INLINE_CHARACTERS:
            return await self.in_thread(function, caller)
        check_deadline(caller.deadline)
        return function()
