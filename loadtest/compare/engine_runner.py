"""Runs workloads on one engine, in a process for each of its layouts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.compare import measurements
from loadtest.compare.candidates import ROOT, Candidate
from loadtest.compare.errors import WorkerError
from loadtest.compare.paths import Paths
from loadtest.compare.worker import Worker
from loadtest.compare.workloads import Workload
from loadtest.tasks import Task

LOAD_SECONDS = 300.0
RUN_SECONDS = 180.0
ASK_SECONDS = 600.0


class EngineRunner:
    """A candidate at one task and precision: a process for each layout.

    A layout that fails to load, or whose process dies, is dropped. ``reason`` says why no layout
    is left, and is empty otherwise.
    """

    def __init__(
        self, candidate: Candidate, task: Task, precision: str, paths: Paths, threads: int
    ) -> None:
        self.name = candidate.name
        self.reason = ""
        self.version = ""
        self._workers: dict[str, Worker] = {}
        self._model: Path | None = None
        try:
            self._model = model = candidate.model(precision, paths.models)
            command = candidate.command(paths.environments)
        except LookupError as error:
            self.reason = str(error)
            return
        message = {
            "op": "load",
            "task": task.value,
            "model": str(model),
            "precision": precision,
            "threads": threads,
        }
        for layout, options in candidate.layouts.items():
            filled = {k: threads if v == "threads" else v for k, v in options.items()}
            log_name = f"{self.name}-{precision}-{layout or 'only'}.log".replace(" ", "-")
            try:
                worker = Worker(command, candidate.variables, paths.logs / log_name, ROOT)
                self._workers[layout] = worker
                reply = worker.call(message | filled, LOAD_SECONDS)
                self.version = str(reply.get("version", ""))
            except WorkerError as error:
                self._drop(layout, f"does not load: {error}")

    @property
    def model(self) -> Path:
        """The folder or file of the model. Raises ``LookupError`` with the reason if missing."""
        if self._model is None:
            raise LookupError(self.reason)
        return self._model

    @property
    def status(self) -> str:
        """The engine's version, or the reason why it cannot run."""
        return self.reason or self.version

    def layouts(self, workload: Workload) -> list[str]:
        """The layouts to try: only the first for a single sequence, which cannot be split."""
        layouts = list(self._workers)
        return layouts[:1] if workload.batch * workload.beams == 1 else layouts

    def run(self, layout: str, workload: Workload, seed: int) -> float:
        """The rate of one run. Raises ``WorkerError`` or ``InvalidResultError``."""
        try:
            reply = self._workers[layout].call(workload.message(seed), RUN_SECONDS)
        except WorkerError as error:
            if not self._workers[layout].is_alive:
                self._drop(layout, f"died in {workload.label}, batch {workload.batch}: {error}")
            raise
        return measurements.rate(workload, reply)

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The reply of the first layout, to a message whose reply does not depend on it.

        Raises ``LookupError`` if there is no layout, or ``WorkerError``.
        """
        if self.reason:
            raise LookupError(self.reason)
        return next(iter(self._workers.values())).call(message, ASK_SECONDS)

    def close(self) -> None:
        for layout in list(self._workers):
            self._workers.pop(layout).close()

    def _drop(self, layout: str, reason: str) -> None:
        worker = self._workers.pop(layout, None)
        if worker is not None:
            worker.kill()
        if not self._workers:
            self.reason = reason
