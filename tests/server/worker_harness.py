"""A generation worker on the fake runtime. Every step checks slot and token accounting."""

from collections.abc import Callable
from dataclasses import dataclass, field

from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.device_logits import LogitsReader
from server.engine.gpu.sampler_inputs import LogitsSpec
from server.engine.lane import never
from server.engine.model_runner import ModelRunner
from server.engine.observer import RunReport, WorkerStats
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import Completion, JobUpdate
from server.engine.scheduler import StepLimits
from server.runtime.host_memory import HostMemory
from server.runtime.memory import MakeMemory
from server.runtime.ort.backend import OrtBackend
from tests.server.fake_backend import EOS, VOCABULARY, FakeDecode, FakeEncode, decode_spec
from tests.server.samplers import device_sampler, load_model

MAX_LENGTH = 64

# Slot memory: host arrays, or the memory of a CPU that stands for a GPU.
MEMORIES: dict[str, MakeMemory] = {
    "host": HostMemory,
    "device": OrtBackend("cpu", 1, has_device_memory=True).memory,
}


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Recorder:
    runs: list[RunReport] = field(default_factory=list)

    def on_run(self, model: str, report: RunReport) -> None:
        assert model == "fake"
        self.runs.append(report)

    def on_step(self, model: str, seconds: float) -> None:
        raise NotImplementedError

    def on_stats(self, model: str, lane: int, stats: WorkerStats) -> None:
        raise NotImplementedError

    def num_tokens(self, phase: str) -> int:
        return sum(run.num_tokens * len(run.seconds) for run in self.runs if run.phase == phase)


@dataclass
class WorkerHarness:
    """A worker and all updates it has returned. ``may_continue``: for its steps."""

    worker: GenerationWorker
    graph: FakeDecode
    clock: Clock
    recorder: Recorder
    cache: SlotTensors
    updates: list[JobUpdate] = field(default_factory=list)
    may_continue: Callable[[], bool] = never

    def submit(self, id_: int, make_job: GenerationJob) -> None:
        self.worker.submit(id_, make_job)

    def step(self) -> list[JobUpdate]:
        updates = self.worker.step(self.may_continue)
        self.worker.check()
        self.updates += updates
        return updates

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.worker.has_work:
                return
            self.step()
        raise AssertionError("the work does not end")

    def tokens_of(self, id_: int, output: int = 0) -> list[int]:
        return [
            token
            for update in self.updates
            if (update.id, update.output) == (id_, output)
            for token in update.tokens
        ]

    def completions_of(self, id_: int) -> dict[int, Completion]:
        ends: dict[int, Completion] = {}
        for update in self.updates:
            if update.id == id_ and update.completion is not None:
                assert update.output not in ends, "an output ends once"
                ends[update.output] = update.completion
        return ends

    def last_update_of(self, id_: int, output: int = 0) -> JobUpdate:
        (last,) = (
            update
            for update in self.updates
            if (update.id, update.output) == (id_, output) and update.completion is not None
        )
        return last

    @property
    def tokens(self) -> dict[int, list[int]]:
        return {id_: self.tokens_of(id_) for id_ in {update.id for update in self.updates}}

    @property
    def outcomes(self) -> dict[int, list[Outcome]]:
        return {
            id_: [end.outcome for end in ends.values()]
            for id_ in {update.id for update in self.updates}
            if (ends := self.completions_of(id_))
        }


def make_harness(
    *,
    num_slots: int = 4,
    max_batched_tokens: int = 16,
    has_source: bool = False,
    is_recurrent: bool = True,
    memory: str = "host",
    has_buckets: bool = False,
    samples_on_device: bool = False,
    num_prefix_slots: int = 0,
    **graph: int,
) -> WorkerHarness:
    decode_graph, clock, recorder = FakeDecode(**graph, is_padded=has_buckets), Clock(), Recorder()
    capacity = Capacity(num_slots, MAX_LENGTH, MAX_LENGTH, num_prefix_slots)
    encode_graph = FakeEncode() if has_source else None
    buckets = Buckets.of(num_slots, MAX_LENGTH) if has_buckets else None
    spec = decode_spec(has_source=has_source, is_recurrent=is_recurrent)
    logits = LogitsSpec(VOCABULARY)
    runner = ModelRunner(
        spec,
        decode_graph,
        encode_graph,
        capacity,
        memory=MEMORIES[memory],
        buckets=buckets,
        reader=LogitsReader(load_model, logits)
        if samples_on_device and memory == "device"
        else None,
    )
    limits = StepLimits(num_slots, max_batched_tokens, min_chunk=4)
    sampler = device_sampler(logits) if samples_on_device else None
    worker = GenerationWorker("fake", runner, capacity, limits, clock, recorder, sampler)
    return WorkerHarness(worker, decode_graph, clock, recorder, runner.cache)


def make_job(prompt: list[int], max_new_tokens: int, source: tuple[int, ...] = ()) -> GenerationJob:
    return GenerationJob(tuple(prompt), max_new_tokens, source, frozenset({EOS}))
