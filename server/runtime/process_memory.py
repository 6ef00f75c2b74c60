"""How much memory this process has, and may have."""

import mmap
from pathlib import Path

from server.control_groups import memory_limits


def resident_bytes() -> int:
    """Memory of this process that is in use; 0 if the operating system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def container_bytes() -> int | None:
    """The memory of this machine, or of the container if it has a limit; None if unknown."""
    try:
        total = Path("/proc/meminfo").read_text().split("MemTotal:", 1)[1]
        machine = int(total.split(maxsplit=1)[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
    return min((machine, *memory_limits()))
