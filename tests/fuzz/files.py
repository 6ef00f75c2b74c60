"""A folder in memory for readers that want files."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

MEMORY = Path("/dev/shm")


@cache
def scratch(name: str) -> Path:
    """A folder of this process's own, gone when it ends."""
    where = MEMORY if MEMORY.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix=f"triune-fuzz-{name}-", dir=where))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def rewrite(path: Path, data: bytes) -> Path:
    """``path`` with ``data``, as a new file: an old mapping keeps what it mapped."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def made(name: str, make) -> bytes:
    """What ``make(path)`` writes."""
    path = scratch("seeds") / name
    make(path)
    return path.read_bytes()
