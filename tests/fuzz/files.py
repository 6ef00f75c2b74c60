"""In-memory files for readers that need a path."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

MEMORY = Path("/dev/shm")
_parents = [MEMORY if MEMORY.is_dir() else None]


@contextmanager
def scratch_of_fork() -> Iterator[None]:
    """Deletes the scratch folders that a fork makes meanwhile: forks run no exit handlers."""
    with tempfile.TemporaryDirectory(prefix="triune-fuzz-", dir=_parents[-1]) as folder:
        _parents.append(Path(folder))
        try:
            yield
        finally:
            _parents.pop()


@cache
def scratch(name: str) -> Path:
    """A temporary folder of this process, deleted at exit."""
    path = Path(tempfile.mkdtemp(prefix=f"triune-fuzz-{name}-", dir=_parents[-1]))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def rewrite(path: Path, data: bytes) -> Path:
    """Replaces ``path`` by a new file with ``data``; existing mappings keep the old content."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def content_of(name: str, make) -> bytes:
    """The bytes that ``make(path)`` writes."""
    path = scratch("seeds") / name
    make(path)
    return path.read_bytes()
