"""Recorded runs over prompts and sources: what they cache, and what is not recorded."""

import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from model.bundle import StateRole
from model.bundle_files import read_manifest
from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.buckets import TextBuckets
from server.engine.gpu.device_logits import LogitsReader
from server.engine.gpu.device_sampler import logits_spec
from server.engine.gpu.padded_prompts import PaddedPrompts, has_recorded_prompts
from server.engine.gpu.padded_sources import PaddedSources, has_recorded_sources
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.engine.scheduler import StepLimits
from server.runtime.memory import Array, Layout, Memory
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
        )
        graph, memory = graph or self.graph, MEMORIES["device"]
        if buckets is not None:
            runner.prompts = PaddedPrompts(
                self.spec, graph, runner.cache, buckets, memory, self._reader
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
    assert has_recorded_prompts(decoder.spec)
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
    assert worker.progress.num_begun == plain.progress.num_begun, "the watchdog times each run"


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
    prompts = worker._runner.prompts
    assert prompts is not None
    assert prompts.buckets is None
    assert prompts._memory is None, "it is free"
    jobs = decoder.jobs([9, 10])
    assert run(worker, jobs) == run(decoder.worker(buckets=None), jobs)


def test_keys_and_values_are_compared(
    decoder: Decoder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the logits alone: here the slots get none."""
    monkeypatch.setattr(SlotTensors, "write", lambda *_: None)
    assert decoder.worker().stats.num_cuda_graphs == 0
    assert "differs from the decode graph by" in caplog.text
    caplog.clear()


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
def test_prompts_after_a_source_are_not_recorded(
    tiny_bundles: Path, recurrent_bundles: Path, name: str
) -> None:
    folder = {"dates": tiny_bundles, "tiny-gru": recurrent_bundles}[name]
    assert not has_recorded_prompts(read_manifest(folder / name / "1").graphs["decode"])


class Translator:
    """An encoder-decoder on a CPU that stands for a GPU; runs of its encoder are recorded.

    ``outputs``: the tensors of its slots that the encoder fills.
    """

    def __init__(self, directory: Path, cuda: StandIn) -> None:
        self.cuda, self.manifest = cuda, read_manifest(directory)
        self._backend = OrtBackend("cpu", 1, has_device_memory=True)
        spec = self.manifest.graphs["encode"]
        assert has_recorded_sources(spec)
        session = onnxruntime.InferenceSession(
            str(directory / spec.file), providers=["CPUExecutionProvider"]
        )
        self.graph = CapturedGraph(session, cuda)
        self.cache, self.contents = self._cache()

    def _cache(self) -> tuple[SlotTensors, Memory]:
        made: list[Memory] = []

        def memory(layouts: Mapping[str, Layout]) -> Memory:
            made.append(self._backend.memory(layouts))
            return made[-1]

        states = self.manifest.graphs["decode"].states
        return SlotTensors(states, NUM_SLOTS, 8, MAX_LENGTH, memory), made[0]

    def recorded(self, graph: CapturedGraph | None = None) -> PaddedSources:
        size = self.manifest.dimensions.vocabulary_size
        memory = self._backend.memory
        return PaddedSources(graph or self.graph, self.cache, BUCKETS, memory, size)

    def filled(self, sources: list[list[int]], slots: list[int]) -> dict[str, list[Array]]:
        """By state: what the slots hold, of each source as many tokens as it has."""
        found = {}
        for state in self.cache.filled_by_encoder:
            whole = self.contents.read_all(state.name)
            has_tokens = state.role != StateRole.RECURRENT
            found[state.name] = [
                whole[slot][:, : len(source)] if has_tokens else whole[slot]
                for source, slot in zip(sources, slots, strict=True)
            ]
        return found

    def expected(self, sources: list[list[int]]) -> dict[str, list[Array]]:
        """The same by a plain run of each source."""
        graph = self.graph.bind({})
        found: dict[str, list[Array]] = {}
        for source in sources:
            outputs = graph.run(
                {"token_ids": np.array([source]), "lengths": np.array([len(source)], np.int32)}
            )
            for state in self.cache.filled_by_encoder:
                found.setdefault(state.name, []).append(outputs[state.source or ""][0].copy())
        return found


@pytest.fixture(params=["dates", "tiny-gru"])
def translator(
    request: pytest.FixtureRequest, tiny_bundles: Path, recurrent_bundles: Path, cuda: StandIn
) -> Iterator[Translator]:
    folder = {"dates": tiny_bundles, "tiny-gru": recurrent_bundles}[request.param]
    made = Translator(folder / request.param / "1", cuda)
    yield made
    vars(made).clear()


def random_sources(lengths: list[int]) -> list[list[int]]:
    rng = random.Random(len(lengths))
    return [[rng.randrange(5, 20) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("late", [False, True], ids=["device at once", "device late"])
def test_sources_fill_slots_as_plain_runs_do(translator: Translator, late: bool) -> None:
    padded = translator.recorded()
    assert padded.record() == len(BUCKETS) == translator.graph.num_launches
    translator.cuda.be_late(late)
    for lengths, slots in (([9], [3]), ([12, 7, 15, 1], [5, 0, 1, 2]), ([40], [4])):
        sources = random_sources(lengths)
        assert padded.run(sources, slots)
        expected, found = translator.expected(sources), translator.filled(sources, slots)
        for name, values in expected.items():
            for one, other in zip(found[name], values, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert not padded.run(random_sources([60, 60]), [0, 1]), "no bucket holds them"
    translator.cuda.be_late(False)


def test_recorded_sources_that_differ_are_not_used(translator: Translator) -> None:
    padded = translator.recorded(ForgetfulGraph(translator.graph.session, translator.cuda))
    with pytest.raises(RuntimeError, match="differs from that of a plain one by"):
        padded.record()


def test_sources_of_a_run_that_fails_run_again(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    padded = translator.recorded()
    padded.record()
    translator.cuda.fail("cudaGraphLaunch", ILLEGAL)
    assert not padded.run([[7, 8, 9]], [0])
    assert caplog.text.count("a recorded run over sources failed") == 1
    caplog.clear()
    translator.cuda.reset()
    assert not padded.run([[7, 8, 9]], [0]), "they are not used any more"
