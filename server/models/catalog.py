"""Loads and unloads models while other models are served."""

import asyncio
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from model.adapters import bundle_of
from model.bundle import NAME_PATTERN, BundleError
from model.bundle_files import read_manifest
from server.config import ServerConfig
from server.engine.engine import Engine
from server.engine.lane import Worker
from server.engine.observer import Observer
from server.errors import BundleNotFoundError, InvalidArgumentError, LoadError, StartupError
from server.models.bundles_folder import Fingerprint, Key, find_bundles, fingerprint_of
from server.models.calls_in_flight import CallsInFlight
from server.models.heap import trim_heap
from server.models.memory_ledger import MemoryLedger, num_weight_bytes, with_planned_slots
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
from server.models.switch_interval import short_switch_interval
from server.models.warm_up import warm_up
from server.models.workers import admission_limits, make_workers
from server.niceness import Niceness, add_niceness
from server.printable import printable, quoted, shortened
from server.runtime.contract import Backend

log = logging.getLogger(__name__)

# Maximum bytes of the reason why a bundle is refused; it may quote the manifest.
_MAX_REASON_BYTES = 2048


class CatalogObserver(Observer, Protocol):
    """An engine observer that is also notified when a model is gone."""

    def forget(self, model: str) -> None:
        """Called when no version of this model is served any more."""
        ...


class Catalog:
    """Owns the registry. Use it on the event loop; only :meth:`_prepare` runs in a thread.

    New calls stop reaching a replaced or unloaded model at once. Its memory is freed when its
    earlier calls have ended.

    Args:
        config: the server's configuration.
        backends: run the graphs; one per device.
        engine: runs the models.
        observer: receives reports of runs and steps, and the names of models that are gone.
        announce: called after each change of the registry.

    Attributes:
        fingerprints: each bundle's files when its last load was requested, for :class:`Watch`.
    """

    def __init__(
        self,
        config: ServerConfig,
        backends: Sequence[Backend],
        engine: Engine,
        observer: CatalogObserver,
        announce: Callable[[Registry], Awaitable[None]],
    ) -> None:
        self.registry = Registry()
        self.calls = CallsInFlight()
        self.fingerprints: dict[Key, Fingerprint] = {}
        self._config = config
        self._backends = backends
        self._engine = engine
        self._observer = observer
        self._announce = announce
        self._memory = MemoryLedger(config)
        self._num_loads: Counter[Key] = Counter()
        # Bundles are loaded one at a time.
        # The threads that a graph starts inherit the niceness.
        self._loading = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="load",
            initializer=add_niceness,
            initargs=(Niceness.LANE,),
        )
        self._locks: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._retiring: set[asyncio.Task[None]] = set()
        self._is_preparing = False  # set by the loading thread

    @property
    def is_loading(self) -> bool:
        """Whether a thread loads a bundle, maybe for a call that was cancelled."""
        return self._is_preparing

    async def load_all(self) -> None:
        """Loads every bundle in the folder. A damaged bundle is refused; the others are served.

        Raises:
            StartupError: the folder cannot be read.
        """
        try:
            found = find_bundles(self._config.bundles)
        except OSError as error:
            raise StartupError(f"cannot read {self._config.bundles}: {error.strerror}") from error
        for path, reason in found.unreadable.items():
            log.error("cannot read %s: %s", "/".join(path), reason)
        folders = [self._config.bundles.joinpath(*key) for key in found.keys]
        sizes = await asyncio.to_thread(lambda: list(map(num_weight_bytes, folders)))
        for number, (name, version) in enumerate(found.keys, start=1):
            self._memory.expect(sizes[number:])
            try:
                await self.load_found(name, version)
            except LoadError:
                continue  # load_found has logged it and recorded it in the registry

    async def load(self, name: str, version: str = "") -> Model:
        """Loads or reloads a bundle. Returns when new calls use it.

        Args:
            name: the model's name.
            version: the model's version; empty means the newest in the folder.

        Raises:
            InvalidArgumentError: the name or version is malformed.
            BundleNotFoundError: there is no such bundle.
            LoadError: the bundle is refused. A model loaded from it earlier keeps serving.
        """
        version, fingerprint = await asyncio.to_thread(self._find, name, version)
        self.fingerprints[name, version] = fingerprint
        return await self.load_found(name, version)

    async def load_found(self, name: str, version: str) -> Model:
        """Like :meth:`load`, for a bundle that :func:`find_bundles` has found."""
        directory = self._config.bundles / name / version
        # Bundles with unprintable names are never served: manifests cannot contain such names.
        name, version = printable(name), printable(version)
        async with self._locks[name, version]:
            before = self.registry.entry(name, version)
            serving = None if before is None else before.model
            if serving is None:
                await self._set(Entry(name, version, State.LOADING))
            try:
                model, workers = await asyncio.get_running_loop().run_in_executor(
                    self._loading, self._prepare, directory, serving
                )
            except (BundleError, StartupError) as error:
                reason = shortened(
                    str(error).replace(f"{directory}", f"{name}/{version}"), _MAX_REASON_BYTES
                )
                log.error("refused a bundle: %s", reason)
                state = State.REFUSED if serving is None else State.READY
                await self._set(Entry(name, version, state, serving, reason))
                raise LoadError(reason) from error
            model = replace(model, serial=self._num_loads[name, version])
            self._num_loads[name, version] += 1
            config = with_planned_slots(self._config, model)
            self._engine.add(model.key, workers, admission_limits(model, config))
            await self._engine.wait_until_ready(model.key)
            await self._set(Entry(name, version, State.READY, model))
            log.info("loaded %s", model.key)
            if serving is not None:
                self._retire(serving)
            return model

    async def unload(self, name: str, version: str = "") -> tuple[str, ...]:
        """Unloads one version of a model, or all of them.

        Returns:
            The unloaded versions. Earlier calls still finish.

        Raises:
            ModelNotFoundError: no such version is served.
            InvalidArgumentError: the model is an adapter of a bundle.
        """
        self.registry.get(name, version)
        if bundle_of(name) != name:
            raise InvalidArgumentError(
                "model",
                f"the adapter {quoted(name)} is unloaded with its bundle {bundle_of(name)!r}",
            )
        unloaded = []
        for entry in self.registry.entries:
            if entry.name == name and version in ("", entry.version):
                unloaded += await self.unload_version(entry.name, entry.version)
        return tuple(unloaded)

    async def unload_version(self, name: str, version: str) -> list[str]:
        """Unloads one version if it is served; removes its entry if it was refused."""
        name, version = printable(name), printable(version)
        async with self._locks[name, version]:
            entry = self.registry.entry(name, version)
            if entry is None or entry.state == State.UNLOADING:
                return []
            if entry.model is None:
                await self._set(None, name, version)
                return []
            unloading = replace(entry, state=State.UNLOADING, model=None, failure="")
            await self._set(unloading)
            log.info("unloaded %s", entry.model.key)
            self._retire(entry.model, unloading)
            return [version]

    async def settled(self) -> None:
        """Waits until the memory of all models replaced or unloaded so far is freed."""
        await asyncio.gather(*self._retiring)

    def close(self) -> None:
        """Cancels queued loads; does not wait for the running one."""
        self._loading.shutdown(wait=False, cancel_futures=True)
        for task in self._retiring:
            task.cancel()

    def _retire(self, model: Model, unloading: Entry | None = None) -> None:
        self._memory.leave(model)
        task = asyncio.create_task(self._remove_and_free(model, unloading))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _remove_and_free(self, model: Model, unloading: Entry | None) -> None:
        key = model.key
        retired = self._remove(model, unloading)
        del model  # the coroutine holds the last reference until it ends
        await retired
        await asyncio.to_thread(trim_heap)
        log.info("freed the memory of %s", key)

    async def _remove(self, model: Model, unloading: Entry | None) -> None:
        """Removes a model from the engine after its calls in flight have ended."""
        name, version, key = model.manifest.name, model.manifest.version, model.key
        await self.calls.ended(name)
        await self._engine.remove(key)
        if unloading is not None and self.registry.entry(name, version) is unloading:
            await self._set(None, name, version)
        if name not in self.registry.names:
            self._observer.forget(name)

    async def _set(self, entry: Entry | None, name: str = "", version: str = "") -> None:
        if entry is not None:
            name, version = entry.name, entry.version
        self.registry = self.registry.replacing(name, version, entry)
        await self._announce(self.registry)

    def _find(self, name: str, version: str) -> tuple[str, Fingerprint]:
        """The version of an existing bundle to load, and its files. It runs in a thread."""
        for field, value in (("model", name), ("version", version)):
            if not re.fullmatch(NAME_PATTERN, value) and (value or field == "model"):
                raise InvalidArgumentError(field, f"{quoted(value)} does not match {NAME_PATTERN}")
        root = self._config.bundles
        try:
            keys = find_bundles(root).keys
            versions = [found for model, found in keys if model == name and version in ("", found)]
            if not versions:
                raise BundleNotFoundError(label_of(name, version))
            newest = max(versions, key=version_order)
            return newest, fingerprint_of(root / name / newest)
        except OSError as error:
            raise LoadError(f"cannot read the bundles folder: {error.strerror}") from error

    def _prepare(self, directory: Path, before: Model | None) -> tuple[Model, list[Worker[Any]]]:
        """Loads a bundle, warms it up and makes its workers. Runs in the loading thread."""
        self._is_preparing = True
        try:
            with short_switch_interval():
                return self._loaded(directory, before)
        finally:
            self._is_preparing = False

    def _loaded(self, directory: Path, before: Model | None) -> tuple[Model, list[Worker[Any]]]:
        label = f"{directory.parent.name}/{directory.name}"
        try:
            if not directory.resolve().is_relative_to(self._config.bundles.resolve()):
                raise BundleError(f"{label}: the folder is a link out of the bundles folder")
            self._memory.check_weights(directory, before)
            first, *others = self._backends
            if self._config.has_separate_memory and read_manifest(directory).adapters:
                raise BundleError(f"{label}: LoRA adapters are served on CPUs only")
            model = load_bundle(directory, first, self._config.max_length, before)
            model = replicated(model, others)
            model = self._memory.plan(model, self._backends, before)
            config = with_planned_slots(self._config, model)
            warm_up(model, config)
            return model, make_workers(model, config, self._observer)
        except (BundleError, StartupError):
            raise
        except MemoryError as error:
            raise BundleError(f"{label}: {error or 'there is not enough memory'}") from error
        except BaseException as error:
            # A bundle's content may make a library raise anything (a Rust panic is not an
            # Exception). The server must survive it.
            log.exception("%s cannot be loaded", label)
            raise BundleError(f"{label}: cannot be loaded: {type(error).__name__}") from error
