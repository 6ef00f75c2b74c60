"""The report, written after each part, so that a run that is cut off goes on where it was."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOT_MEASURED = "not measured: this ran on a CPU, and shows only that every part runs"


class Report:
    """``loadtest gpu``'s JSON: what was found by part, and for each that was not, why.

    Args:
        path: of the file; what it holds of the same device is kept.
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
        """What was found of the machine; None: nothing yet."""
        return self._all.get(key)

    def set(self, key: str, found: Any) -> None:
        """Writes down what is no check and no speed."""
        self._all[key] = found
        self._write()

    def check(self, name: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._all["checks"].get(name)
        return found

    def add_check(self, name: str, found: Mapping[str, Any]) -> None:
        self._all["checks"][name] = dict(found)
        self._write()

    def benchmark(self, name: str) -> dict[str, Any]:
        """Rows by batch, and ``peers`` that cannot run, by reason."""
        found: dict[str, Any] = self._all["speed"].setdefault(name, {"rows": {}, "reasons": {}})
        return found

    def save(self) -> None:
        self._write()

    @property
    def failed_checks(self) -> list[str]:
        """Those that ran and did not pass."""
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
