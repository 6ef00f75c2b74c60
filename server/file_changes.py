"""Whether files changed since the last look."""

from pathlib import Path


class FileChanges:
    """What is read again when its files are other ones. Not for two threads at once.

    Args:
        paths: of files that may come, change and go.
    """

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = [_state(path) for path in paths]

    def since_last_look(self) -> bool:
        """Whether any of them was written, replaced or removed."""
        before, self._seen = self._seen, [_state(path) for path in self._paths]
        return self._seen != before


def _state(path: Path) -> tuple[int, int, int] | None:
    """Inode, size in bytes and time of change in nanoseconds; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
