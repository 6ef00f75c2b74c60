"""Watching the folder of bundles: what is new or changed is loaded, what is gone is unloaded."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from server.errors import LoadError
from server.models.catalog import Catalog, Key, find_bundles

log = logging.getLogger(__name__)

# Each file's path, inode, size in bytes and time of change in nanoseconds.
Print = frozenset[tuple[str, int, int, int]]
Prints = Mapping[Key, Print]


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do, in order."""

    load: tuple[Key, ...] = ()
    unload: tuple[Key, ...] = ()


def changes(known: Prints, before: Prints, now: Prints) -> Changes:
    """What has changed, and stands still: a pure function.

    A bundle that was written between the last two looks may not be whole, so it waits for the
    next. One that was refused is loaded again when its files have changed; nothing else is.

    Args:
        known: what each bundle was like when it was last loaded.
        before: at the last look.
        now: at this one.
    """
    settled = [key for key in now if before.get(key) == now[key]]
    return Changes(
        load=tuple(key for key in settled if known.get(key) != now[key]),
        unload=tuple(key for key in known if key not in now and key not in before),
    )


def look(root: Path) -> dict[Key, Print]:
    """What each bundle below ``root`` is like. One that vanishes meanwhile is left out.

    Raises ``OSError`` without a folder, which is not the same as one without bundles.
    """
    root.stat()
    prints = {}
    for key in find_bundles(root):
        try:
            prints[key] = _print(root.joinpath(*key))
        except FileNotFoundError:
            continue
    return prints


def _print(directory: Path) -> Print:
    return frozenset(
        (str(path.relative_to(directory)), status.st_ino, status.st_size, status.st_mtime_ns)
        for path in directory.rglob("*")
        for status in (path.lstat(),)
    )


@dataclass(slots=True)
class Watch:
    """Looks at ``root`` every ``seconds`` and has the catalog follow it.

    Make it before the bundles are loaded for the first time: what changes meanwhile is seen.
    """

    catalog: Catalog
    root: Path
    seconds: float
    _known: dict[Key, Print] = field(init=False)
    _before: dict[Key, Print] = field(init=False)

    def __post_init__(self) -> None:
        self._known = look(self.root)
        self._before = dict(self._known)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self.seconds)
            try:
                await self.follow()
            except OSError as error:
                log.error("cannot look at the bundles: %s", error)

    async def follow(self) -> None:
        """Looks once."""
        now = await asyncio.to_thread(look, self.root)
        wanted = changes(self._known, self._before, now)
        self._before = now
        for key in wanted.unload:
            del self._known[key]
            await self.catalog.withdraw(*key)
        for key in wanted.load:
            self._known[key] = now[key]
            try:
                await self.catalog.load_found(*key)
            except LoadError:
                continue  # it is in the registry, and in the log
