"""Detects changes of files by inode, size and modification time."""

from pathlib import Path


class WatchedFiles:
    """Files whose content the server reloads when they change. Not thread-safe.

    Args:
        paths: the files. They may be created, replaced or removed at any time.
    """

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = [_state(path) for path in paths]

    def have_changed(self) -> bool:
        """Whether a file was created, written, replaced or removed since the last call."""
        before, self._seen = self._seen, [_state(path) for path in self._paths]
        return self._seen != before


def _state(path: Path) -> tuple[int, int, int] | None:
    """Inode, size in bytes and modification time in nanoseconds; ``None`` without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
