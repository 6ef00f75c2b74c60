"""Folders and files of a comparison."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Paths:
    """Folders of the peers' environments, of prepared models, and of logs."""

    environments: Path
    models: Path
    logs: Path


def packaged_file(module: str, path: str) -> Path:
    """A path in a package of ``requirements-models.txt``, without importing the package."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return Path(f"{module}-is-not-installed") / path
    return Path(next(iter(spec.submodule_search_locations))) / path
