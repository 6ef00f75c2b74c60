"""Builds the models and bundles that are missing, in processes of their own."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.compare.worker import Worker
from loadtest.gpu import skeletons
from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_sizes import ModelSize

FOLDER = Path(__file__).resolve().parents[2]


def worker(module: str, root: Path) -> Worker:
    """Starts ``python -m module`` with this interpreter."""
    log_path = root / "logs" / f"{module.rpartition('.')[2]}.log"
    return Worker([sys.executable, "-m", module], {}, log_path, FOLDER)


class ModelBuilder:
    """Builds below ``root``; existing results are reused.

    Args:
        device: target of the bundles.
    """

    def __init__(self, root: Path, device: str, deadline: Deadline) -> None:
        self._root, self._deadline = root, deadline
        self._device = device.partition(":")[0]
        self._workers: dict[str, Worker] = {}

    def model(self, size: ModelSize) -> Path:
        """A model with random weights, as a folder for ``transformers``."""
        path = self._root / "models" / size.name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            message = {"op": "make", "config": dict(size.config)}
            message |= {"family": size.made_as or size.family, "out": str(path)}
            self._call("loadtest.peers.random_models", message)
        return path

    def bundle(self, size: ModelSize, precision: str, kv_cache: str) -> Path:
        """The same model as a bundle."""
        out = self._bundle_folder(size, precision, kv_cache)
        if not (out / "1").exists():
            source = self.model(size)
            message = {"op": "export", "source": str(source), "out": str(out)}
            form = {"precision": precision, "device": self._device, "kv_cache": kv_cache}
            self._call("export.bench", {**message, **form})
        return out / "1"

    def bundle_to_time(self, size: ModelSize, precision: str, kv_cache: str) -> Path:
        """A bundle that computes as fast: with other random weights, if there is a skeleton."""
        out = self._bundle_folder(size, precision, kv_cache)
        skeleton = self._skeleton("bundles", out.name)
        if not skeleton.exists():
            return self.bundle(size, precision, kv_cache)
        # A bundle has the name of its folder.
        return _unpacked(skeleton, self._root / "random" / "bundles" / out.name / "1")

    def model_to_time(self, size: ModelSize) -> Path:
        """A folder for ``transformers``; only settings, if there is a skeleton."""
        skeleton = self._skeleton("models", size.name)
        return skeleton if skeleton.exists() else self.model(size)

    def converted_to_time(self, size: ModelSize) -> Path:
        """A model for CTranslate2 that computes as fast. Raises as :meth:`converted` does."""
        skeleton = self._skeleton("ctranslate2", size.name)
        if not skeleton.exists():
            return self.converted(size)
        return _unpacked(skeleton, self._root / "random" / "ctranslate2" / size.name)

    def pack_bundle(self, size: ModelSize, precision: str, kv_cache: str) -> None:
        """Makes the skeleton of a bundle, for a machine that lacks the time to export it."""
        skeleton = self._skeleton("bundles", self._bundle_folder(size, precision, kv_cache).name)
        if not skeleton.exists():
            skeletons.pack(self.bundle(size, precision, kv_cache), skeleton)

    def pack_model(self, size: ModelSize) -> None:
        """Makes the skeleton of a folder for ``transformers``."""
        skeleton = self._skeleton("models", size.name)
        if not skeleton.exists():
            skeletons.pack_settings(self.model(size), skeleton)

    def pack_converted(self, size: ModelSize) -> None:
        """Makes the skeleton of a model for CTranslate2. Raises as :meth:`converted` does."""
        skeleton = self._skeleton("ctranslate2", size.name)
        if not skeleton.exists():
            skeletons.pack(self.converted(size), skeleton)

    def _skeleton(self, kind: str, name: str) -> Path:
        return self._root / "skeletons" / kind / name

    def _bundle_folder(self, size: ModelSize, precision: str, kv_cache: str) -> Path:
        return self._root / "bundles" / self._device / f"{size.name}-{precision}-{kv_cache}"

    def converted(self, size: ModelSize) -> Path:
        """The same model for CTranslate2. Raises ``WorkerError`` if that is not installed."""
        source = self.model(size)
        out = self._root / "ctranslate2" / size.name
        if not out.exists():
            message = {"op": "convert", "model": str(source), "out": str(out)}
            precision = "fp16" if self._device == "cuda" else "fp32"  # that of the benchmarks
            self._call("loadtest.peers.ctranslate2_engine", {**message, "precision": precision})
        return out

    def close(self) -> None:
        """Ends the building processes, which frees their memory."""
        for each in self._workers.values():
            each.close()
        self._workers = {}

    def _call(self, module: str, message: Mapping[str, Any]) -> None:
        held = self._workers.get(module)
        if held is None or not held.is_alive:
            held = self._workers[module] = worker(module, self._root)
        held.call(message, self._deadline.remaining_seconds())


def _unpacked(skeleton: Path, out: Path) -> Path:
    if not out.exists():
        skeletons.unpack(skeleton, out)
    return out
