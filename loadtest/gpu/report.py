"""The report of ``loadtest gpu``, written after each part so that a later run can continue."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOT_MEASURED = "not measured: this ran on a CPU and only shows that every part works"


class Report:
    """A JSON file with results, and reasons for what could not be measured.

    Args:
        path: an existing report of the same device is continued.
    """

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self._all: dict[str, Any] = {"device": device, "checks": {}, "speed": {}}
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.get("device") == device:
                self._all = found
        if not device.startswith("cuda"):
            self._all["note"] = NOT_MEASURED

    def get(self, key: str) -> Any:
        """A field of the report; ``None`` if it is missing."""
        return self._all.get(key)

    def set(self, key: str, found: Any) -> None:
        """Sets a field other than checks and benchmarks."""
        self._all[key] = found
        self._write()

    def check(self, name: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._all["checks"].get(name)
        return found

    def add_check(self, name: str, found: Mapping[str, Any]) -> None:
        self._all["checks"][name] = dict(found)
        self._write()

    def benchmark(self, name: str) -> dict[str, Any]:
        """Rows by batch size, and reasons of peers that cannot run by name."""
        found: dict[str, Any] = self._all["speed"].setdefault(name, {"rows": {}, "reasons": {}})
        return found

    def save(self) -> None:
        self._write()

    @property
    def failed_checks(self) -> list[str]:
        """Names of the checks that ran and failed."""
        caches = {
            f"{name}, {cache}": found
            for name, row in (self.get("caches") or {}).items()
            for cache, found in row.items()
            if isinstance(found, dict)
        }
        every = {**self._all["checks"], **caches}
        return [name for name, found in every.items() if found.get("passed") is False]

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.partial")
        partial.write_text(json.dumps(self._all, indent=2) + "\n", encoding="utf-8")
        partial.replace(self._path)
