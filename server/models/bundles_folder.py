"""Finds the bundles in a folder of NAME/VERSION folders, and detects changes of their files."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from model.bundle import MANIFEST_FILE
from server.models.registry import version_order

Key = tuple[str, str]
"""A bundle's name and version: the names of its two folders, which may be unprintable."""

# Each file's path, inode, size in bytes and modification time in nanoseconds.
Fingerprint = frozenset[tuple[str, int, int, int]]


@dataclass(frozen=True, slots=True)
class FoundBundles:
    """The bundles below a folder, sorted by name and version.

    ``unreadable`` maps folders that cannot be read to the reason. Its keys are the parts of their
    paths: a name, or a name and a version.
    """

    keys: tuple[Key, ...]
    unreadable: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    def is_unreadable(self, key: Key) -> bool:
        """Whether the state of a bundle is unknown because one of its folders is unreadable."""
        return key in self.unreadable or key[:1] in self.unreadable


def find_bundles(root: Path) -> FoundBundles:
    """Finds every folder below ``root`` with a manifest.

    Raises:
        OSError: ``root`` itself cannot be read.
    """
    keys: list[Key] = []
    unreadable: dict[tuple[str, ...], str] = {}
    for name in sorted(path.name for path in root.iterdir()):
        try:
            for version in _folders_with_manifest(root, name, unreadable):
                keys.append((name, version))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unreadable[name,] = error.strerror or str(error)
    return FoundBundles(
        tuple(sorted(keys, key=lambda key: (key[0], version_order(key[1])))), unreadable
    )


def _folders_with_manifest(
    root: Path, name: str, unreadable: dict[tuple[str, ...], str]
) -> Iterator[str]:
    for path in (root / name).iterdir():
        try:
            (path / MANIFEST_FILE).lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unreadable[name, path.name] = error.strerror or str(error)
        else:
            yield path.name


def fingerprint_of(directory: Path) -> Fingerprint:
    """The fingerprint of one bundle. Raises ``OSError`` if a folder cannot be read."""
    return frozenset(
        (str(path.relative_to(directory)), status.st_ino, status.st_size, status.st_mtime_ns)
        for folder, folders, files in os.walk(directory, onerror=_raise)
        for path in (Path(folder, name) for name in (*folders, *files))
        for status in (path.lstat(),)
    )


def _raise(error: OSError) -> None:
    raise error
