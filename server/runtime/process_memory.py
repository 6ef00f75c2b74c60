"""Reads how much memory this process uses, and how much it may use."""

import mmap
from pathlib import Path

from server.control_groups import memory_limits


def resident_bytes() -> int:
    """Returns the resident bytes of this process; 0 if the operating system reports none."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def container_bytes() -> int | None:
    """Returns the bytes of memory of this machine, or the container's limit; None if unknown."""
    try:
        total = Path("/proc/meminfo").read_text().split("MemTotal:", 1)[1]
        machine = int(total.split(maxsplit=1)[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
    return min((machine, *memory_limits()))
