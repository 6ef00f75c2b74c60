"""Polls the bundles folder: loads new and changed bundles, unloads removed ones."""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from server.errors import LoadError, StartupError
from server.models.bundles_folder import FoundBundles, Key, find_bundles
from server.models.catalog import Catalog

log = logging.getLogger(__name__)

# Each file's path, inode, size in bytes and modification time in nanoseconds.
Fingerprint = frozenset[tuple[str, int, int, int]]
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
            fingerprints[key] = _fingerprint(root.joinpath(*key))
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable[key] = error.strerror or str(error)
    return Poll(fingerprints, FoundBundles(found.keys, unreadable))


def _fingerprint(directory: Path) -> Fingerprint:
    """The fingerprint of one bundle. Raises ``OSError`` if a folder cannot be read."""
    return frozenset(
        (str(path.relative_to(directory)), status.st_ino, status.st_size, status.st_mtime_ns)
        for folder, folders, files in os.walk(directory, onerror=_raise)
        for path in (Path(folder, name) for name in (*folders, *files))
        for status in (path.lstat(),)
    )


def _raise(error: OSError) -> None:
    raise error


@dataclass(slots=True)
class Watch:
    """Polls ``root`` every ``seconds`` and updates the catalog.

    Create it before the bundles are first loaded, so that it detects changes made during the load.
    Models whose folders can no longer be read stay served.

    Raises:
        StartupError: ``root`` cannot be read.
    """

    catalog: Catalog
    root: Path
    seconds: float
    _loaded: dict[Key, Fingerprint] = field(init=False)
    _previous: dict[Key, Fingerprint] = field(init=False)
    _unreadable: Mapping[tuple[str, ...], str] = field(init=False)

    def __post_init__(self) -> None:
        try:
            first = poll(self.root)
        except OSError as error:
            raise StartupError(f"cannot read {self.root}: {error.strerror}") from error
        self._loaded = dict(first.fingerprints)
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
        latest = await asyncio.to_thread(poll, self.root)
        for path, reason in latest.found.unreadable.items() - self._unreadable.items():
            log.error("cannot read %s: %s", "/".join(path), reason)
        self._unreadable = latest.found.unreadable
        current = latest.after(self._previous)
        wanted = changes(self._loaded, self._previous, current)
        self._previous = current
        for key in wanted.unload:
            del self._loaded[key]
            await self.catalog.unload_version(*key)
        for key in wanted.load:
            self._loaded[key] = current[key]
            try:
                await self.catalog.load_found(*key)
            except LoadError:
                continue  # the catalog has logged it and recorded it in the registry
