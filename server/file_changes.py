"""Detects changes of files, so that they can be reloaded."""

from pathlib import Path


class FileChanges:
    """Compares files with their state at the previous check.

    Only one thread at a time may call :meth:`detected`; any thread may read :attr:`are_pending`.

    Args:
        paths: the files, which may be created, changed and removed.
    """

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = [_state(path) for path in paths]

    @property
    def are_pending(self) -> bool:
        """Whether :meth:`detected` would return true, without resetting the comparison."""
        return self._seen != [_state(path) for path in self._paths]

    @property
    def newest_seconds(self) -> float:
        """When the last of the files was written, at the previous check; 0 without any."""
        return max((state[2] for state in self._seen if state is not None), default=0) / 1e9

    def detected(self) -> bool:
        """Whether any file was created, written, replaced or removed since the previous call."""
        before, self._seen = self._seen, [_state(path) for path in self._paths]
        return self._seen != before


def _state(path: Path) -> tuple[int, int, int] | None:
    """Inode, size in bytes and modification time in nanoseconds; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
