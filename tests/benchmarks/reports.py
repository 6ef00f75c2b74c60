"""Writes the reports of benchmarks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(report: Mapping[str, Any], out: Path) -> None:
    """Writes ``report`` as JSON; creates missing folders."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
