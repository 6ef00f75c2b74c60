"""Folders of a comparison."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Paths:
    """Folders of the peers' environments, of prepared models, and of logs."""

    environments: Path
    models: Path
    logs: Path
