"""Polls the bundles folder: loads new and changed bundles, unloads removed ones."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from server.errors import LoadError, StartupError
from server.models.bundles_folder import (
    Fingerprint,
    FoundBundles,
    Key,
    find_bundles,
    fingerprint_of,
)
from server.models.catalog import Catalog

log = logging.getLogger(__name__)

Fingerprints = Mapping[Key, Fingerprint]


@dataclass(frozen=True, slots=True)
class Changes:
    """The bundles to load and to unload, in order."""

    load: tuple[Key, ...] = ()
    unload: tuple[Key, ...] = ()


def changes(loaded: Fingerprints, previous: Fingerprints, current: Fingerprints) -> Changes:
    """Returns the bundles that changed since their last load, but not since the previous poll.

    A bundle that changed between the two polls may be incomplete, so it waits for the next poll.
    A refused bundle is loaded again only when its files change. This is a pure function.

    Args:
        loaded: each bundle's fingerprint when it was last loaded.
        previous: each bundle's fingerprint at the previous poll.
        current: each bundle's fingerprint at this poll.
    """
    settled = [key for key in current if previous.get(key) == current[key]]
    return Changes(
        load=tuple(key for key in settled if loaded.get(key) != current[key]),
        unload=tuple(key for key in loaded if key not in current and key not in previous),
    )


@dataclass(frozen=True, slots=True)
class Poll:
    """The fingerprint of each bundle, and the folders that could not be read."""

    fingerprints: Fingerprints
    found: FoundBundles

    def after(self, previous: Fingerprints) -> dict[Key, Fingerprint]:
        """The fingerprints, including the previous ones of bundles that could not be read."""
        kept = {
            key: fingerprint
            for key, fingerprint in previous.items()
            if self.found.is_unreadable(key)
        }
        return {**kept, **self.fingerprints}


def poll(root: Path) -> Poll:
    """The fingerprint of each bundle below ``root``, except bundles removed during the poll.

    Raises:
        OSError: ``root`` cannot be read. An empty folder is no error.
    """
    found = find_bundles(root)
    unreadable = dict(found.unreadable)
    fingerprints = {}
    for key in found.keys:
        try:
            fingerprints[key] = fingerprint_of(root.joinpath(*key))
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable[key] = error.strerror or str(error)
    return Poll(fingerprints, FoundBundles(found.keys, unreadable))


@dataclass(slots=True)
class Watch:
    """Polls ``root`` every ``seconds`` and updates the catalog.

    Create it before the bundles are first loaded, so that it detects changes made during the load.
    A changed bundle that the admin port has loaded is not loaded again. Models whose folders can no
    longer be read stay served.

    Raises:
        StartupError: ``root`` cannot be read.
    """

    catalog: Catalog
    root: Path
    seconds: float
    _previous: dict[Key, Fingerprint] = field(init=False)
    _unreadable: Mapping[tuple[str, ...], str] = field(init=False)

    def __post_init__(self) -> None:
        try:
            first = poll(self.root)
        except OSError as error:
            raise StartupError(f"cannot read {self.root}: {error.strerror}") from error
        self.catalog.fingerprints.update(first.fingerprints)
        self._previous = dict(first.fingerprints)
        self._unreadable = first.found.unreadable

    async def run(self) -> None:
        """Polls until it is cancelled."""
        while True:
            await asyncio.sleep(self.seconds)
            try:
                await self.follow()
            except OSError as error:
                log.error("cannot read the bundles folder: %s", error)
            except Exception:
                # A failed poll must not end the watch.
                log.exception("watching the bundles folder failed")

    async def follow(self) -> None:
        """Polls once, and loads and unloads the changed bundles."""
        loaded = self.catalog.fingerprints
        before = dict(loaded)  # a bundle that is loaded during the poll may be missing in it
        latest = await asyncio.to_thread(poll, self.root)
        for path, reason in latest.found.unreadable.items() - self._unreadable.items():
            log.error("cannot read %s: %s", "/".join(path), reason)
        self._unreadable = latest.found.unreadable
        current = latest.after(self._previous)
        wanted = changes(before, self._previous, current)
        self._previous = current
        for key in wanted.unload:
            loaded.pop(key, None)
            await self.catalog.unload_version(*key)
        for key in wanted.load:
            if loaded.get(key) == current[key]:
                continue  # it was loaded meanwhile
            loaded[key] = current[key]
            try:
                await self.catalog.load_found(*key)
            except LoadError:
                continue  # the catalog has logged it and recorded it in the registry
