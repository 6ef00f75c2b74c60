"""The process of an engine under measurement, with the time limits of its item."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.compare.errors import WorkerError
from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_builder import ModelBuilder, worker
from loadtest.gpu.model_sizes import Family
from loadtest.gpu.plan import OURS, Benchmark

_FIRST_ID = 5
_CONVERTED = "ctranslate2_engine"
_TASKS = {
    Family.DECODER: ("generate", "decode"),
    Family.ENCODER_DECODER: ("translate", "translate"),
    Family.ENCODER: ("embed", "embed"),
}


@dataclass(frozen=True)
class Setting:
    """What all items of a run share."""

    builder: ModelBuilder
    root: Path
    device: str
    threads: int
    deadline: Deadline


class EngineWorker:
    """Starts and loads the benchmark's engine.

    Args:
        module: of our engine's process.

    Raises:
        WorkerError: the engine does not start, or not within the benchmark's limit.
    """

    def __init__(
        self, benchmark: Benchmark, setting: Setting, module: str = "server.bench"
    ) -> None:
        self._benchmark, self._deadline = benchmark, setting.deadline
        self._end = time.monotonic() + benchmark.limit_seconds
        is_ours = benchmark.engine == OURS
        message = _ours(benchmark, setting) if is_ours else _peer(benchmark, setting)
        setting.builder.close()
        self._worker = worker(
            module if is_ours else f"loadtest.peers.{benchmark.engine}", setting.root
        )
        task, _ = _TASKS[benchmark.size.family]
        common = {"op": "load", "task": task, "device": setting.device, "threads": setting.threads}
        try:
            self.call({**common, **message})
        except BaseException:
            self.close()
            raise

    def call(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a message and returns the reply.

        Raises:
            WorkerError: the engine fails or its limit has passed.
            OutOfTimeError: the whole run's deadline has passed.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise WorkerError(f"took longer than {self._benchmark.limit_seconds:g} s")
        try:
            return self._worker.call(message, min(left, self._deadline.remaining_seconds()))
        except WorkerError:
            self._deadline.remaining_seconds()  # raises if the deadline caused the error
            raise

    @property
    def is_alive(self) -> bool:
        return self._worker.is_alive

    def close(self) -> None:
        """Ends the process."""
        self._worker.close()


def _ours(benchmark: Benchmark, setting: Setting) -> dict[str, Any]:
    bundle = setting.builder.bundle_to_time(benchmark.size, benchmark.precision, benchmark.kv_cache)
    return {
        "model": str(bundle),
        "lanes": None if setting.device == "cpu" else benchmark.lanes,
        "slots": max(benchmark.batches),
        "max_length": min(1024, benchmark.num_tokens + benchmark.num_new_tokens + 1),
        "config": dict(benchmark.config),
    }


def _peer(benchmark: Benchmark, setting: Setting) -> dict[str, Any]:
    builder = setting.builder
    is_converted = benchmark.engine == _CONVERTED
    make = builder.converted_to_time if is_converted else builder.model_to_time
    return {"model": str(make(benchmark.size)), "precision": benchmark.precision}


def run_message(benchmark: Benchmark, batch: int, number: int) -> dict[str, Any]:
    """The ``run`` message. Ids are random and new in each round: nothing is cached already."""
    task, kind = _TASKS[benchmark.size.family]
    random = np.random.default_rng((number, batch))
    shape = (batch, benchmark.num_tokens)
    inputs = random.integers(_FIRST_ID, benchmark.size.config["vocab_size"], shape).tolist()
    return {
        "op": "run",
        "task": task,
        "kind": kind,
        "inputs": inputs,
        "max_new_tokens": benchmark.num_new_tokens,
        "beams": 1,
    }
