"""Reads the limits of this process's control groups (Linux cgroups), such as a container's.

Source: the Linux kernel's documentation, "Control Group v2" and "CFS Bandwidth Control".
"""

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")


def memory_limits(root: Path = _ROOT, groups: Path = _GROUPS) -> Iterator[int]:
    """Yields the memory limit of each control group that has one, in bytes.

    Args:
        root: the mount point of the control groups.
        groups: the file that lists the process's groups.
    """
    for folder, is_v2 in _folders("memory", root, groups):
        for (limit,) in _read(folder, "memory.max" if is_v2 else "memory.limit_in_bytes"):
            yield limit


def num_cores(available: int, root: Path = _ROOT, groups: Path = _GROUPS) -> int:
    """Limits ``available`` cores to the whole cores that the CPU time limits allow; at least 1.

    ``root`` and ``groups`` are those of :func:`memory_limits`.
    """
    cores = float(available)
    for folder, is_v2 in _folders("cpu", root, groups):
        files = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for quota, period in _read(folder, *files):
            if quota > 0:
                cores = min(cores, quota / period)
    return max(int(cores), 1)


def _folders(controller: str, root: Path, groups: Path) -> Iterator[tuple[Path, bool]]:
    """Yields the folder of each group and of its parents, and whether the group is cgroup v2."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controller if controllers else root
        # In a container, the path may be the host's; then the root itself is the container's group.
        folder = top / path.lstrip("/")
        for each in (folder, *folder.parents):
            if each.is_relative_to(top):
                yield each, not controllers


def _read(folder: Path, *files: str) -> Iterator[list[int]]:
    """Yields the numbers in a group's files; nothing if the group sets no limit."""
    try:
        yield [int(word) for file in files for word in (folder / file).read_text().split()]
    except (OSError, ValueError):  # no such group, or "max": no limit
        return
