"""An engine that is measured: how it is started, its models and its layouts."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from loadtest.compare.environments import COMPLETE_FILE, Environment, require
from loadtest.tasks import Task

ROOT = Path(__file__).resolve().parents[2]


COMPARED = (Task.GENERATE, Task.TRANSLATE, Task.EMBED)


class Level(StrEnum):
    """The level of a comparison: engines, servers with clients, or batching policies.

    ``TEXT`` is an engine with its tokenizer: from text to text.
    """

    ENGINE = "engine"
    TEXT = "text"
    SERVER = "server"
    STATIC = "static"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One engine at one task.

    Args:
        module: run by ``python -m``; it speaks the protocol of ``loadtest/peers/json_lines.py``.
        models: paths below the folder of prepared models, by precision.
        layouts: ways to use the cores, by name: fields to add to the ``load`` message. The
            fastest for each workload counts.
        environment: ``None`` is our own interpreter.
        variables: environment variables of the process.
    """

    name: str
    module: str
    models: Mapping[str, str]
    layouts: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    environment: Environment | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, environments: Path) -> list[str]:
        """Raises ``LookupError`` with the reason if the environment is missing."""
        if self.environment is None:
            return [sys.executable, "-m", self.module]
        require(environments / self.environment.name / COMPLETE_FILE)
        return [str(self.environment.python(environments)), "-m", self.module]

    def model(self, precision: str, models: Path) -> Path:
        """Raises ``LookupError`` with the reason if the model is missing."""
        if precision not in self.models:
            raise LookupError(f"has no {precision}")
        return require(models / self.models[precision])


def bundles_folder(models: Path) -> Path:
    """Folder of our own bundles: a new one for each version of the exporting code."""
    digest = hashlib.sha256()
    for folder in ("model", "export"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return models / f"bundles-{digest.hexdigest()[:12]}"
