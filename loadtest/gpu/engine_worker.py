"""The process of the engine under measurement."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.compare.errors import WorkerError
from loadtest.compare.worker import Worker
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


class Engines:
    """Starts engines. Loading takes longer than measuring: the last engine stays for the next item.

    The caller closes it.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._worker: Worker | None = None
        self._loaded = ""

    def load(self, benchmark: Benchmark, module: str = "server.bench") -> "LimitedEngine":
        """The benchmark's engine, loaded.

        Args:
            module: of our engine's process.

        Raises:
            WorkerError: the engine does not start, or not within the benchmark's limit.
        """
        setting = self.setting
        is_ours = benchmark.engine == OURS
        task, _ = _TASKS[benchmark.size.family]
        message = {
            "op": "load",
            "task": task,
            "device": setting.device,
            "threads": setting.threads,
            **(_ours(benchmark, setting) if is_ours else _peer(benchmark, setting)),
        }
        setting.builder.close()
        name = module if is_ours else f"loadtest.peers.{benchmark.engine}"
        wanted = json.dumps([name, message])
        if self._worker is None or not self._worker.is_alive or self._loaded != wanted:
            self.close()
            self._worker = worker(name, setting.root)
        engine = LimitedEngine(self._worker, benchmark.limit_seconds, setting.deadline)
        if self._loaded != wanted:
            try:
                engine.call(message)
            except BaseException:
                self.close()
                raise
            self._loaded = wanted
        return engine

    def close(self) -> None:
        """Ends the engine's process."""
        if self._worker is not None:
            self._worker.close()
        self._worker, self._loaded = None, ""


class LimitedEngine:
    """An engine with the time limits of its item."""

    def __init__(self, process: Worker, limit_seconds: float, deadline: Deadline) -> None:
        self._worker, self._deadline = process, deadline
        self._limit, self._end = limit_seconds, time.monotonic() + limit_seconds

    def call(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a message and returns the reply.

        Raises:
            WorkerError: the engine fails or its limit has passed.
            OutOfTimeError: the whole run's deadline has passed.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise WorkerError(f"took longer than {self._limit:g} s")
        try:
            return self._worker.call(message, min(left, self._deadline.remaining_seconds()))
        except WorkerError:
            self._deadline.remaining_seconds()  # raises if the deadline caused the error
            raise

    @property
    def is_alive(self) -> bool:
        return self._worker.is_alive


def _ours(benchmark: Benchmark, setting: Setting) -> dict[str, Any]:
    size = benchmark.size
    bundle = setting.builder.bundle_to_time(size, benchmark.precision, benchmark.kv_cache)
    found = {
        "model": str(bundle),
        "lanes": None if setting.device == "cpu" else benchmark.lanes,
        "config": dict(benchmark.config),
    }
    if size.family == Family.ENCODER:
        return {**found, "max_length": size.config["max_position_embeddings"]}
    length = min(1024, benchmark.num_tokens + benchmark.num_new_tokens + 1)
    return {**found, "slots": max(benchmark.batches) * benchmark.beams, "max_length": length}


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
        "beams": benchmark.beams,
    }
