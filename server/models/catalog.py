"""The models of a running server: how they come and go while others are served."""

import asyncio
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.bundle import MANIFEST_FILE, NAME_PATTERN, BundleError
from server.config import ServerConfig
from server.engine.engine import Engine
from server.engine.lane import Worker
from server.errors import BundleNotFoundError, InvalidArgumentError, LoadError, StartupError
from server.models.calls_in_flight import CallsInFlight
from server.models.free_memory import release_free_memory
from server.models.registry import (
    Entry,
    Model,
    Registry,
    State,
    label_of,
    load_bundle,
    replicated,
    version_order,
)
from server.models.warm_up import warm_up
from server.models.workers import capacity_of, make_workers
from server.runtime.contract import Backend
from server.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

Key = tuple[str, str]


class Catalog:
    """Owns the registry: all of it on the event loop, but for what :meth:`_prepare` does.

    A model that is replaced or unloaded is offered to no new call at once; its memory is free
    when the calls that came before have ended.

    Args:
        config: of the server.
        backends: that run the graphs, one for each device.
        engine: that has the models which are served.
        metrics: of runs and steps.
        announce: called after each change of the registry.
    """

    def __init__(
        self,
        config: ServerConfig,
        backends: Sequence[Backend],
        engine: Engine,
        metrics: Metrics,
        announce: Callable[[Registry], Awaitable[None]],
    ) -> None:
        self.registry = Registry()
        self.calls = CallsInFlight()
        self._config = config
        self._backends = backends
        self._engine = engine
        self._metrics = metrics
        self._announce = announce
        self._num_loads: Counter[Key] = Counter()
        # One bundle at a time is loaded, whatever is asked for.
        self._loading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load")
        self._locks: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._retiring: set[asyncio.Task[None]] = set()

    async def load_all(self) -> None:
        """Loads every bundle there is. One that is damaged is refused, the others are served."""
        for name, version in find_bundles(self._config.bundles):
            try:
                await self.load_found(name, version)
            except LoadError:
                continue  # it is in the registry, and in the log

    async def load(self, name: str, version: str = "") -> Model:
        """Loads a bundle, or loads it again; returns when new calls get it.

        Args:
            name: of the model.
            version: the newest in the folder if empty.

        Raises:
            InvalidArgumentError: no name of a bundle.
            BundleNotFoundError: there is no such bundle.
            LoadError: it is refused; one that was loaded from there before goes on serving.
        """
        return await self.load_found(name, await asyncio.to_thread(self._find, name, version))

    async def load_found(self, name: str, version: str) -> Model:
        """As ``load``, for a folder of :func:`find_bundles`."""
        async with self._locks[name, version]:
            before = self.registry.entry(name, version)
            serving = None if before is None else before.model
            if serving is None:
                await self._set(Entry(name, version, State.LOADING))
            directory = self._config.bundles / name / version
            try:
                model, workers = await asyncio.get_running_loop().run_in_executor(
                    self._loading, self._prepare, directory, serving
                )
            except (BundleError, StartupError) as error:
                reason = str(error).replace(f"{directory}", f"{name}/{version}")
                log.error("refused a bundle: %s", reason)
                state = State.REFUSED if serving is None else State.READY
                await self._set(Entry(name, version, state, serving, reason))
                raise LoadError(reason) from error
            model = replace(model, serial=self._num_loads[name, version])
            self._num_loads[name, version] += 1
            self._engine.add(model.key, workers, capacity_of(model, self._config))
            await self._engine.prepared(model.key)
            await self._set(Entry(name, version, State.READY, model))
            log.info("loaded %s", model.key)
            if serving is not None:
                self._retire(serving)
            return model

    async def unload(self, name: str, version: str = "") -> tuple[str, ...]:
        """Offers a version, or all of a model's, to no new call. Returns which.

        Raises:
            ModelNotFoundError: none is served.
        """
        self.registry.get(name, version)
        gone = []
        for entry in self.registry.entries:
            if entry.name == name and version in ("", entry.version):
                gone += await self.withdraw(entry.name, entry.version)
        return tuple(gone)

    async def withdraw(self, name: str, version: str) -> list[str]:
        """Unloads one version if it is served; one that was refused is forgotten."""
        async with self._locks[name, version]:
            entry = self.registry.entry(name, version)
            if entry is None or entry.state == State.UNLOADING:
                return []
            if entry.model is None:
                await self._set(None, name, version)
                return []
            leaving = replace(entry, state=State.UNLOADING, model=None, failure="")
            await self._set(leaving)
            log.info("unloaded %s", entry.model.key)
            self._retire(entry.model, leaving)
            return [version]

    async def settled(self) -> None:
        """Waits until what was replaced or unloaded so far is out of memory."""
        await asyncio.gather(*self._retiring)

    def close(self) -> None:
        """Begins no more loads; what runs is not waited for."""
        self._loading.shutdown(wait=False, cancel_futures=True)
        for task in self._retiring:
            task.cancel()

    def _retire(self, model: Model, leaving: Entry | None = None) -> None:
        task = asyncio.create_task(self._freed(model, leaving))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _freed(self, model: Model, leaving: Entry | None) -> None:
        key = model.key
        retired = self._retired(model, leaving)
        del model  # the last reference goes with the coroutine's end
        await retired
        await asyncio.to_thread(release_free_memory)
        log.info("%s is out of memory", key)

    async def _retired(self, model: Model, leaving: Entry | None) -> None:
        """Lets go of a model that no new call gets, after those that have it."""
        name, version, key = model.manifest.name, model.manifest.version, model.key
        await self.calls.ended(name)
        await self._engine.remove(key)
        if leaving is not None and self.registry.entry(name, version) is leaving:
            await self._set(None, name, version)
        if name not in self.registry.names:
            self._metrics.forget(name)

    async def _set(self, entry: Entry | None, name: str = "", version: str = "") -> None:
        if entry is not None:
            name, version = entry.name, entry.version
        self.registry = self.registry.replacing(name, version, entry)
        await self._announce(self.registry)

    def _find(self, name: str, version: str) -> str:
        """The version to load, of a bundle that is there. In a thread."""
        for field, value in (("model", name), ("version", version)):
            if not re.fullmatch(NAME_PATTERN, value) and (value or field == "model"):
                raise InvalidArgumentError(field, f"{value!r} does not match {NAME_PATTERN}")
        found = [row for row in find_bundles(self._config.bundles) if row[0] == name]
        versions = [row for _, row in found if version in ("", row)]
        if not versions:
            raise BundleNotFoundError(label_of(name, version))
        return max(versions, key=version_order)

    def _prepare(self, directory: Path, before: Model | None) -> tuple[Model, list[Worker[Any]]]:
        """Loads a bundle, runs it once and makes its workers. In the loading thread."""
        label = f"{directory.parent.name}/{directory.name}"
        try:
            if not directory.resolve().is_relative_to(self._config.bundles.resolve()):
                raise BundleError(f"{label}: the folder is a link out of the bundles")
            first, *others = self._backends
            model = load_bundle(directory, first, self._config.max_length, before)
            model = replicated(model, others)
            warm_up(model, self._config)
            return model, make_workers(model, self._config, self._metrics)
        except (BundleError, StartupError):
            raise
        except BaseException as error:
            # Whatever a bundle's content makes a library raise (a panic of one written in Rust
            # is no Exception): the server goes on.
            log.exception("%s cannot be loaded", label)
            raise BundleError(f"{label}: cannot be loaded: {type(error).__name__}") from error


def find_bundles(root: Path) -> list[Key]:
    """Every name and version below ``root`` that has a manifest, in order."""
    found = (
        (path.parent.parent.name, path.parent.name) for path in root.glob(f"*/*/{MANIFEST_FILE}")
    )
    return sorted(found, key=lambda key: (key[0], version_order(key[1])))
