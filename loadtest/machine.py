"""Where and with what a figure was measured."""

import os
import platform
from importlib import metadata
from pathlib import Path

_PACKAGES = ("triune", "grpcio", "protobuf", "numpy", "uvloop")
_REPORTED_FLAGS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "amx_int8": "AMX"}


def machine() -> dict[str, str | int | None]:
    """The load generator's machine; the server's too, if it is on loopback."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def versions() -> dict[str, str | None]:
    """Of Python and the packages that the load generator runs on; ``None``: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def cpu_flags() -> frozenset[str]:
    """What the processor can, by Linux's names; empty where they are not known."""
    return frozenset((_cpuinfo("flags") or "").split())


def _processor() -> str | None:
    """The model name that Linux tells, and what of its instructions decides how fast models are."""
    name = _cpuinfo("model name") or platform.processor() or None
    found = [said for flag, said in _REPORTED_FLAGS.items() if flag in cpu_flags()]
    return f"{name} ({', '.join(found)})" if name and found else name


def _cpuinfo(field: str) -> str | None:
    """Of the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(field))
    return next(values, None)
