"""Results of the fault tests: one row per fault, for ``python -m scripts.faults``."""

import re

import msgspec

from scripts.faults import ROWS, Figure, Row


def record(order: int, fault: str, must: str, **figures: Figure) -> None:
    """Writes a row to ``build/faults``: the fault, the required behaviour, the measurements."""
    ROWS.mkdir(parents=True, exist_ok=True)
    row = Row(order=order, fault=fault, must=must, figures=figures)
    slug = re.sub(r"[^a-z0-9]+", "-", fault.lower()).strip("-")
    path = ROWS / f"{order:02}-{slug}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(row), indent=2) + b"\n")


def percentile(values: list[float], share: float) -> float:
    """The ``share`` quantile (0 to 1) of ``values``."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
