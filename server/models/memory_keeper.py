"""Returns idle memory to the operating system, and reports the memory of each model."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from server.config import ServerConfig
from server.engine.cache.idle_rows import IdleLimits
from server.engine.engine import Engine
from server.engine.requests.busy_lanes import BusyLanes
from server.models.catalog import Catalog
from server.models.garbage import FullCollections
from server.models.heap import trim_heap
from server.models.registry import Model
from server.runtime.process_memory import resident_bytes

log = logging.getLogger(__name__)

# If more than this share of the memory budget is in use, idle memory is released at once.
_PRESSURE = 0.9


class MemoryObserver(Protocol):
    """Receives reports of memory, in bytes; of a model, over all of its versions."""

    def on_memory(
        self, model: str, *, weights: int, cache_reserved: int, cache_resident: int, working: int
    ) -> None: ...

    def on_process_memory(self, resident: int) -> None: ...


class MemoryKeeper:
    """Checks the memory every ``config.memory_check_seconds``. Use it on the event loop."""

    def __init__(
        self,
        config: ServerConfig,
        catalog: Catalog,
        engine: Engine,
        busy: BusyLanes,
        observer: MemoryObserver,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._engine = engine
        self._busy = busy
        self._observer = observer
        self._garbage = FullCollections()
        self._was_idle = self._is_trimmed = False

    async def run(self) -> None:
        """Checks until it is cancelled."""
        while True:
            try:
                await self.check()
            except Exception:
                # A failed check must not end the loop.
                log.exception("checking the memory failed")
            await asyncio.sleep(self._config.memory_check_seconds)

    async def check(self) -> None:
        """Makes the lanes release idle memory, collects garbage, trims the heap, and reports."""
        budget = self._config.memory_budget
        is_pressed = budget is not None and resident_bytes() > _PRESSURE * budget
        limits = IdleLimits(
            self._config.idle_seconds, self._config.prefix_idle_seconds, is_pressed=is_pressed
        )
        self._engine.release_memory(limits)
        await self._report()
        # Trimming locks the heap, so streams would wait for it.
        is_idle = self._busy.is_idle
        self._garbage.collect(is_idle=is_idle and self._was_idle)
        if is_idle and self._was_idle and not self._is_trimmed:
            await asyncio.to_thread(trim_heap)
            self._is_trimmed = True
        elif not is_idle:
            self._is_trimmed = False
        self._was_idle = is_idle

    async def _report(self) -> None:
        await asyncio.to_thread(_measure_caches, self._catalog.registry.models)
        versions: dict[str, list[Model]] = {}
        for model in self._catalog.registry.models:  # some may have been unloaded meanwhile
            versions.setdefault(model.manifest.name, []).append(model)
        for name, models in versions.items():
            plans = [model.memory for model in models if model.memory is not None]
            self._observer.on_memory(
                name,
                weights=sum(plan.weight_bytes for plan in plans),
                cache_reserved=sum(plan.cache_bytes for plan in plans),
                cache_resident=sum(model.caches.resident_bytes for model in models),
                working=sum(plan.working_bytes for plan in plans),
            )
        self._observer.on_process_memory(resident_bytes())


def _measure_caches(models: Sequence[Model]) -> None:
    """Measures each model's slots. Visits every page, so it runs in a thread."""
    for model in models:
        model.caches.measure()
