"""The machine and the package versions of a measurement."""

import os
import platform
from importlib import metadata
from pathlib import Path

_PACKAGES = ("triune", "grpcio", "protobuf", "numpy", "uvloop")
_REPORTED_FLAGS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "amx_int8": "AMX"}


def machine() -> dict[str, str | int | None]:
    """The load generator's machine; also the server's if that is on loopback."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the load generator's packages; ``None`` if not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def cpu_flags() -> frozenset[str]:
    """CPU feature flags by Linux's names; empty if unknown."""
    return frozenset((_cpuinfo("flags") or "").split())


def _processor() -> str | None:
    """The CPU's model name with the vector extensions that matter most for speed."""
    name = _cpuinfo("model name") or platform.processor() or None
    found = [extension for flag, extension in _REPORTED_FLAGS.items() if flag in cpu_flags()]
    return f"{name} ({', '.join(found)})" if name and found else name


def _cpuinfo(field: str) -> str | None:
    """A field of the first core in ``/proc/cpuinfo``."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(field))
    return next(values, None)
