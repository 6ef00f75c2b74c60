"""The models and bundles that are measured, made where they are missing, by processes."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.compare.worker import Worker
from loadtest.gpu.budget import Budget
from loadtest.gpu.sizes import Size

FOLDER = Path(__file__).resolve().parents[2]


def worker(module: str, root: Path) -> Worker:
    """``python -m module`` of this installation."""
    log = root / "logs" / f"{module.rpartition('.')[2]}.log"
    return Worker([sys.executable, "-m", module], {}, log, FOLDER)


class Maker:
    """Keeps what it made below ``root``, which a later run finds there.

    Args:
        device: that bundles are made for.
    """

    def __init__(self, root: Path, device: str, budget: Budget) -> None:
        self._root, self._budget = root, budget
        self._device = device.partition(":")[0]
        self._workers: dict[str, Worker] = {}

    def model(self, size: Size) -> Path:
        """A folder that ``transformers`` reads."""
        path = self._root / "models" / size.name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            question = {"op": "make", "family": size.family, "config": dict(size.config)}
            self._ask("loadtest.peers.random_models", {**question, "out": str(path)})
        return path

    def bundle(self, size: Size, precision: str, kv_cache: str) -> Path:
        """The same model as a bundle."""
        source = self.model(size)
        name = f"{size.name}-{precision}-{kv_cache}"
        out = self._root / "bundles" / self._device / name
        if not (out / "1").exists():
            question = {"op": "export", "source": str(source), "out": str(out)}
            form = {"precision": precision, "device": self._device, "kv_cache": kv_cache}
            self._ask("export.bench", {**question, **form})
        return out / "1"

    def converted(self, size: Size) -> Path:
        """The same for CTranslate2. Raises ``WorkerError`` where it is not installed."""
        source = self.model(size)
        out = self._root / "ctranslate2" / size.name
        if not out.exists():
            question = {"op": "convert", "model": str(source), "out": str(out)}
            self._ask("loadtest.peers.ctranslate2_engine", question)
        return out

    def close(self) -> None:
        """Ends the processes that made them: what they hold is in nobody's way."""
        for each in self._workers.values():
            each.close()
        self._workers = {}

    def _ask(self, module: str, question: Mapping[str, Any]) -> None:
        held = self._workers.get(module)
        if held is None or not held.is_alive:
            held = self._workers[module] = worker(module, self._root)
        held.ask(question, self._budget.left())
