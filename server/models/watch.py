"""Polls the bundles folder: loads new and changed bundles, unloads removed ones."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from server.errors import LoadError
from server.models.catalog import Catalog, Key, find_bundles

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
    """The bundles that changed, but not since the previous poll. A pure function.

    A bundle that changed between the two polls may be incomplete, so it waits for the next poll.
    A refused bundle is loaded again only when its files change.

    Args:
        loaded: each bundle when it was last loaded.
        previous: each bundle at the previous poll.
        current: each bundle at this poll.
    """
    settled = [key for key in current if previous.get(key) == current[key]]
    return Changes(
        load=tuple(key for key in settled if loaded.get(key) != current[key]),
        unload=tuple(key for key in loaded if key not in current and key not in previous),
    )


def poll(root: Path) -> dict[Key, Fingerprint]:
    """The fingerprint of each bundle below ``root``, except bundles removed during the poll.

    Raises:
        OSError: there is no folder ``root``. An empty folder is no error.
    """
    root.stat()
    fingerprints = {}
    for key in find_bundles(root):
        try:
            fingerprints[key] = _fingerprint(root.joinpath(*key))
        except FileNotFoundError:
            continue
    return fingerprints


def _fingerprint(directory: Path) -> Fingerprint:
    return frozenset(
        (str(path.relative_to(directory)), status.st_ino, status.st_size, status.st_mtime_ns)
        for path in directory.rglob("*")
        for status in (path.lstat(),)
    )


@dataclass(slots=True)
class Watch:
    """Polls ``root`` every ``seconds`` and updates the catalog.

    Create it before the bundles are first loaded, so that it detects changes made during the load.
    """

    catalog: Catalog
    root: Path
    seconds: float
    _loaded: dict[Key, Fingerprint] = field(init=False)
    _previous: dict[Key, Fingerprint] = field(init=False)

    def __post_init__(self) -> None:
        self._loaded = poll(self.root)
        self._previous = dict(self._loaded)

    async def run(self) -> None:
        """Polls until it is cancelled."""
        while True:
            await asyncio.sleep(self.seconds)
            try:
                await self.follow()
            except OSError as error:
                log.error("cannot read the bundles folder: %s", error)

    async def follow(self) -> None:
        """Polls once, and loads and unloads what changed."""
        current = await asyncio.to_thread(poll, self.root)
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
