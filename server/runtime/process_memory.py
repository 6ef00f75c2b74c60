"""How much memory this process has, and may have."""

import mmap
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def resident_bytes() -> int:
    """Memory of this process that is in use; 0 if the operating system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def container_bytes() -> int | None:
    """The memory of this machine, or of the container if it has a limit; None if unknown."""
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    """The machine's memory, and the limits of every control group that this process is in."""
    try:
        total = Path("/proc/meminfo").read_text().split("MemTotal:", 1)[1]
        yield int(total.split(maxsplit=1)[0]) * 1024
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except (OSError, IndexError, ValueError):
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, file = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container, the path may be that of the host: then the root is the container's.
        folder = root / path.lstrip("/")
        for each in (folder, *folder.parents):
            if each.is_relative_to(root):
                yield from _number_in(each / file)


def _number_in(file: Path) -> Iterator[int]:
    try:
        yield int(file.read_text())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return
