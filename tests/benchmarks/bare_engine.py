"""The engine without lanes or gRPC, stepped by the calling thread."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.bundle import TOKENIZER_FILE
from server.engine.cache.slot_tensors import Capacity
from server.engine.generation_worker import GenerationWorker
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.engine.run_inputs import Chunk
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.runtime.contract import BoundGraph, Graph, KernelNodes, RepeatedRun
from server.runtime.host_memory import HostMemory
from server.runtime.memory import Array, Tensor
from server.runtime.ort.backend import OrtBackend

MAX_LENGTH = 1200
MAX_BATCHED_TOKENS = 256


class Stopwatch:
    """Sums the seconds spent inside the runtime."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


class TimedGraph:
    """Wraps a graph and times its runs."""

    def __init__(self, graph: Graph, stopwatch: Stopwatch) -> None:
        self._graph = graph
        self._stopwatch = stopwatch

    @property
    def kernel_nodes(self) -> KernelNodes:
        return self._graph.kernel_nodes

    @property
    def outputs(self) -> Collection[str]:
        return self._graph.outputs

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> "TimedRun":
        return TimedRun(self._graph.bind(states, outputs), self._stopwatch)


class TimedRun:
    def __init__(self, bound: BoundGraph, stopwatch: Stopwatch) -> None:
        self._bound = bound
        self._stopwatch = stopwatch

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        with self._stopwatch.running():
            return self._bound.run(inputs)

    def run_on_device(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str] = ()
    ) -> dict[str, Tensor]:
        with self._stopwatch.running():
            return self._bound.run_on_device(inputs, on_host)

    def repeat_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        on_host: str | None = None,
        *,
        feeds_back: bool = False,
    ) -> RepeatedRun:
        return self._bound.repeat_into(inputs, outputs, on_host, feeds_back=feeds_back)


@dataclass(frozen=True)
class StepTimes:
    """Medians over decode steps, in seconds."""

    step_seconds: float
    runtime_seconds: float

    @property
    def overhead(self) -> float:
        """Share of a step that is spent outside the runtime."""
        return 1.0 - self.runtime_seconds / self.step_seconds


class BareEngine:
    """Runs one decoder bundle.

    Args:
        directory: the bundle's.
        num_threads: intra-op threads.
        num_slots: maximum number of sequences that decode together.
    """

    def __init__(self, directory: Path, num_threads: int, num_slots: int) -> None:
        self.model: Model = load_bundle(directory, OrtBackend("cpu", num_threads), MAX_LENGTH)
        self.stopwatch = Stopwatch()
        spec = self.model.manifest.graphs["decode"]
        graph = TimedGraph(self.model.replicas[0].graphs["decode"], self.stopwatch)
        capacity = Capacity(num_slots, self.model.max_length, self.model.max_length)
        self._runner = ModelRunner(spec, graph, None, capacity, memory=HostMemory)
        limits = StepLimits(num_slots, MAX_BATCHED_TOKENS)
        self._generator = GenerationWorker(
            *("bench", self._runner, capacity, limits, time.perf_counter, Unobserved()),
            allows_drafts=False,  # each step decodes one token
        )
        self._next_id = 0
        self._touch_cache(num_slots)

    def prompts(self, count: int, length: int, seed: int = 0) -> list[tuple[int, ...]]:
        """Random token ids; their values do not affect the speed."""
        size = self.model.manifest.dimensions.vocabulary_size
        random = np.random.default_rng(seed)
        return [tuple(map(int, ids)) for ids in random.integers(10, size, (count, length))]

    def decode_steps(self, batch: int, num_cached: int, num_steps: int) -> StepTimes:
        """Times decode steps of ``batch`` sequences with about ``num_cached`` cached tokens."""
        self._submit(self.prompts(batch, num_cached), num_steps + 40)
        steps: list[float] = []
        runtime: list[float] = []
        while len(steps) < num_steps:
            self.stopwatch.seconds = 0.0
            started = time.perf_counter()
            updates = self._generator.step()
            if (
                len(updates) == batch
                and self._generator.stats.num_cached_tokens > batch * num_cached
            ):
                steps.append(time.perf_counter() - started)
                runtime.append(self.stopwatch.seconds)
        self._finish()
        return StepTimes(float(np.median(steps)), float(np.median(runtime)))

    def generate(self, prompts: list[tuple[int, ...]], num_new_tokens: int) -> float:
        """Generates from all prompts. Returns output tokens per second."""
        started = time.perf_counter()
        self._submit(prompts, num_new_tokens)
        count = 0
        while self._generator.has_work:
            count += sum(len(update.tokens) for update in self._generator.step())
        return count / (time.perf_counter() - started)

    def prefill_seconds(self, length: int) -> float:
        """Seconds to prefill one prompt into an empty slot."""
        prompt = self.prompts(1, length)[0]
        sequence = DecodingSequence.first_of(0, GenerationJob(prompt, 1))
        started = time.perf_counter()
        self._runner.decode([Chunk(sequence, 0, length)], 0)
        return time.perf_counter() - started

    def _submit(self, prompts: list[tuple[int, ...]], num_new_tokens: int) -> None:
        for prompt in prompts:
            self._next_id += 1
            self._generator.submit(self._next_id, GenerationJob(prompt, num_new_tokens))

    def _finish(self) -> None:
        for id_ in range(self._next_id + 1):
            self._generator.cancel(id_)
        while self._generator.has_work:
            self._generator.step()

    def _touch_cache(self, num_slots: int) -> None:
        """Touches all cache memory, so that pages are not mapped during a measurement."""
        for slot in range(num_slots):
            self._runner.cache.clear(slot)


def newest_version(bundle: Path) -> Path:
    """The folder of the newest version in ``bundles/NAME``."""
    versions = sorted(path.parent for path in bundle.glob(f"*/{TOKENIZER_FILE}"))
    if not versions:
        raise SystemExit(f"no bundle in {bundle}: run make bundles")
    return versions[-1]
