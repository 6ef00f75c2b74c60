"""Recorded runs over prompts: their sizes, what they cache, and what is not recorded."""

import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest

from model.bundle_files import read_manifest
from server.engine.cache.slot_tensors import Capacity
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.buckets import TextBuckets
from server.engine.gpu.device_logits import LogitsReader
from server.engine.gpu.device_sampler import logits_spec
from server.engine.gpu.padded_prompts import can_be_recorded
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.engine.scheduler import StepLimits
from server.runtime.ort.backend import OrtBackend
from tests.cuda.libraries import StandIn
from tests.server.captured_runs import CapturedGraph, ForgetfulGraph
from tests.server.worker_harness import MEMORIES

ILLEGAL = 700  # cudaErrorIllegalAddress
NUM_SLOTS, MAX_LENGTH, MAX_TOKENS, NUM_NEW = 6, 64, 96, 5
BUCKETS = TextBuckets.of(MAX_TOKENS, MAX_LENGTH)


class Decoder:
    """A trained decoder on a CPU that stands for a GPU."""

    def __init__(self, directory: Path, cuda: StandIn) -> None:
        self.cuda = cuda
        self.spec = read_manifest(directory).graphs["decode"]
        session = onnxruntime.InferenceSession(
            str(directory / self.spec.file), providers=["CPUExecutionProvider"]
        )
        self.graph = CapturedGraph(session, cuda)
        self._reader = LogitsReader(OrtBackend("cpu", 1).load_model, logits_spec(self.spec))

    def worker(
        self, graph: CapturedGraph | None = None, buckets: TextBuckets | None = BUCKETS
    ) -> GenerationWorker:
        """Ready to work."""
        capacity = Capacity(NUM_SLOTS, MAX_LENGTH, 0)
        runner = ModelRunner(
            self.spec,
            graph or self.graph,
            None,
            capacity,
            memory=MEMORIES["device"],
            reader=self._reader,
            prompt_buckets=buckets,
        )
        limits = StepLimits(NUM_SLOTS, 4 * MAX_TOKENS)
        worker = GenerationWorker("d", runner, capacity, limits, lambda: 0.0, Unobserved())
        worker.prepare()
        return worker

    def jobs(self, lengths: list[int], seed: int = 0) -> list[GenerationJob]:
        rng, size = random.Random(seed), int(self.spec.output("logits").shape[-1])
        prompts = [tuple(rng.randrange(size) for _ in range(length)) for length in lengths]
        return [GenerationJob(prompt, NUM_NEW) for prompt in prompts]


@pytest.fixture
def decoder(tiny_bundles: Path, cuda: StandIn) -> Iterator[Decoder]:
    made = Decoder(tiny_bundles / "tiny-decoder" / "1", cuda)
    yield made
    vars(made).clear()


def run(worker: GenerationWorker, jobs: list[GenerationJob]) -> list[list[int]]:
    """The tokens of each job."""
    for id_, job in enumerate(jobs):
        worker.submit(id_, job)
    tokens: dict[int, list[int]] = {id_: [] for id_ in range(len(jobs))}
    while worker.has_work:
        for update in worker.step():
            tokens[update.id] += update.tokens
            if update.completion is not None:
                assert update.completion.outcome is Outcome.LENGTH, update.completion.failure
        worker.check()
    return list(tokens.values())


@pytest.mark.parametrize("late", [False, True], ids=["device at once", "device late"])
def test_prompts_continue_as_after_plain_runs(decoder: Decoder, late: bool) -> None:
    """A late device copies inputs when results are waited for: they must have stayed."""
    assert can_be_recorded(decoder.spec)
    worker, plain = decoder.worker(), decoder.worker(buckets=None)
    assert worker.stats.num_cuda_graphs == len(BUCKETS) == decoder.graph.num_launches
    decoder.cuda.be_late(late)
    decoder.cuda.reset()
    num_runs = 0
    for seed, lengths in enumerate([[9], [20, 19, 21], [3, 40], [2] * 6, [33, 7, 12, 50, 2, 16]]):
        jobs = decoder.jobs(lengths, seed)
        assert run(worker, jobs) == run(plain, jobs)
        launches = decoder.cuda.calls().count("GraphLaunch")
        assert launches
        num_runs += launches
    assert num_runs >= 10, "prompts of other lengths run apart"
    assert decoder.graph.num_launches == len(BUCKETS), "each bucket is captured once"


def test_long_prompts_and_reused_ones_are_not_padded(decoder: Decoder) -> None:
    worker = decoder.worker(buckets=TextBuckets.of(32, 32))
    plain = decoder.worker(buckets=None)
    decoder.cuda.reset()
    (long,) = decoder.jobs([40])
    longer = replace(long, prompt=(*long.prompt, 5, 6, 7))
    for job in (long, longer):
        assert run(worker, [job]) == run(plain, [job])
    assert "GraphLaunch" not in decoder.cuda.calls()


def test_a_run_that_fails_is_made_without_a_recording(
    decoder: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    worker, plain = decoder.worker(), decoder.worker(buckets=None)
    decoder.cuda.fail("cudaGraphLaunch", ILLEGAL)
    jobs = decoder.jobs([9, 10])
    assert run(worker, jobs) == run(plain, jobs)
    assert caplog.text.count("a recorded run over prompts failed") == 1
    caplog.clear()
    decoder.cuda.reset()
    assert run(worker, decoder.jobs([8])) == run(plain, decoder.jobs([8]))
    assert decoder.cuda.calls() == [], "they are not used any more"


def test_recordings_that_differ_are_not_used(
    decoder: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    worker = decoder.worker(ForgetfulGraph(decoder.graph.session, decoder.cuda))
    assert "differs from the decode graph by" in caplog.text
    caplog.clear()  # the error holds the runs
    assert worker.stats.num_cuda_graphs == 0
    jobs = decoder.jobs([9, 10])
    assert run(worker, jobs) == run(decoder.worker(buckets=None), jobs)


def test_what_cannot_be_captured_is_not_padded(
    decoder: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    decoder.cuda.fail("cudaStreamEndCapture", 901)
    worker = decoder.worker()
    decoder.cuda.reset()
    assert f"0 of {len(BUCKETS)} sizes of runs are recorded" in caplog.text
    jobs = decoder.jobs([9, 10])
    assert run(worker, jobs) == run(decoder.worker(buckets=None), jobs)
    assert decoder.cuda.calls() == []


@pytest.mark.parametrize("name", ["dates", "tiny-gru"])
def test_sources_and_recurrent_states_are_not_recorded(
    tiny_bundles: Path, recurrent_bundles: Path, name: str
) -> None:
    folder = {"dates": tiny_bundles, "tiny-gru": recurrent_bundles}[name]
    assert not can_be_recorded(read_manifest(folder / name / "1").graphs["decode"])
