"""What every call shares."""

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

# Characters whose tokens are found in the event loop, in about half a millisecond at most: to hand
# them to a thread and be woken by it costs as much as 32 tokens do, on cores that are busy.
BRIEF_CHARACTERS = 1024


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

    async def tokenized(self, texts: Iterable[str], function: Callable[[], T], caller: Caller) -> T:
        """What ``function``, which tokenizes ``texts``, returns: in a thread unless they are short.

        Raises ``ServeError`` as :meth:`in_thread`.
        """
        if sum(map(len, texts)) > BRIEF_CHARACTERS:
            return await self.in_thread(function, caller)
        check_deadline(caller.deadline)
        return function()
