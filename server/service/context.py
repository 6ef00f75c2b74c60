"""The components of a running server that calls use."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from server.config import ServerConfig
from server.engine.engine import Engine
from server.models.catalog import Catalog
from server.models.registry import Registry
from server.service.caller import Caller
from server.service.serving_state import ServingState
from server.service.threads import BoundedExecutor, check_deadline
from server.telemetry.metrics import Metrics

T = TypeVar("T")

# Up to this length, texts are tokenized on the event loop, in at most about 0.5 ms. On busy cores,
# a round trip to a thread costs more than that saves.
MAX_INLINE_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """``threads`` run functions that would block the event loop."""

    config: ServerConfig
    catalog: Catalog
    engine: Engine
    metrics: Metrics
    threads: BoundedExecutor
    state: ServingState

    @property
    def registry(self) -> Registry:
        """A snapshot of the served models. Read it once per call."""
        return self.catalog.registry

    def cache_scope(self, caller: Caller) -> str:
        """The scope of a caller's jobs: see :class:`GenerationJob`.

        It is the caller's identity; "" if all callers share prefixes.
        """
        if self.config.shares_prefixes or not self.config.authenticates_callers:
            return ""
        return caller.client

    async def in_thread(self, function: Callable[[], T], caller: Caller | None = None) -> T:
        """Runs ``function`` in a thread and returns its result.

        Args:
            function: a blocking function.
            caller: the caller of a request that is not admitted yet; its deadline and the limit of
                waiting functions apply.

        Raises:
            ServeError: the caller's deadline passed, or too many functions are waiting.
        """
        if caller is None:
            return await self.threads.run(function)
        return await self.threads.run_bounded(function, caller.deadline)

    async def run_tokenizer(
        self, texts: Iterable[str], function: Callable[[], T], caller: Caller
    ) -> T:
        """Runs ``function``, which tokenizes ``texts``: inline if they are short, else in a thread.

        Raises:
            ServeError: as for :meth:`in_thread`.
        """
        if sum(map(len, texts)) > MAX_INLINE_CHARACTERS:
            return await self.in_thread(function, caller)
        check_deadline(caller.deadline)
        return function()
