"""What this machine's registers and memory can do at most: ``loadtest/peak/peak.c``, compiled."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.compare.candidates import ROOT
from loadtest.compare.errors import WorkerError

SOURCE = ROOT / "loadtest" / "peak" / "peak.c"
_COMPILER = (sys.executable, "-m", "ziglang", "cc")
_OPTIONS = ("-target", "x86_64-linux-gnu.2.28", "-mcpu=baseline", "-std=c11", "-O2")
_TIMEOUT_SECONDS = 300.0

Ceilings = dict[str, Any]
"""``operations_per_second`` by precision and instructions; ``bytes_per_second`` by bytes read."""

USABLE = {"fp32": ("fp32",), "int8": ("fp32", "bf16", "int8"), "int4": ("fp32", "bf16", "int8")}
"""Precisions of the arithmetic that an engine may use at a precision of the weights."""


def measure_ceilings(threads: int, folder: Path) -> Ceilings:
    """Measures with ``threads``. Compiles the program to ``folder`` if it has changed.

    Raises:
        WorkerError: the program cannot be compiled or does not run here.
    """
    program = folder / "peak"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        _run(*_COMPILER, *_OPTIONS, str(SOURCE), "-o", str(program))
    found: Ceilings = json.loads(_run(str(program), str(threads)))
    return found


def highest(first: Ceilings, second: Ceilings) -> Ceilings:
    """The higher of each rate of two measurements of one machine."""
    return {
        key: highest(value, second[key]) if isinstance(value, dict) else max(value, second[key])
        for key, value in first.items()
    }


def peak_operations(ceilings: Mapping[str, Any], precision: str) -> float:
    """The fastest arithmetic for weights in ``precision``, in operations per second."""
    rates: Mapping[str, Mapping[str, float]] = ceilings["operations_per_second"]
    return max(rate for each in USABLE[precision] for rate in rates.get(each, {}).values())


def bandwidth(ceilings: Mapping[str, Any], num_bytes: float) -> float:
    """Bytes per second that no read of ``num_bytes`` again and again can exceed.

    It is the highest rate that was measured for as many bytes or more, or for the next smaller
    size, which the caches serve no worse.
    """
    rates = {float(size): rate for size, rate in ceilings["bytes_per_second"].items()}
    smaller = [size for size in rates if size <= num_bytes]
    lowest = max(smaller, default=min(rates))
    return float(max(rate for size, rate in rates.items() if size >= lowest))


def _run(*command: str) -> str:
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "no message").strip().splitlines()
        raise WorkerError(f"peak: {lines[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerError(f"peak: {error}") from error
    return ran.stdout
