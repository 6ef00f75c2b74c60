"""Recorded runs of encoders: their sizes, their vectors, and runs that start ahead of the host."""

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.bundle import Manifest
from model.bundle_files import read_manifest
from server.engine.encoder_batch import BatchLimits
from server.engine.encoder_runner import TOKEN_VECTORS, EncoderRunner
from server.engine.encoder_worker import EncoderWorker
from server.engine.gpu.buckets import TextBuckets
from server.engine.gpu.padded_encoder import PaddedEncoder, can_be_padded
from server.engine.observer import Unobserved
from server.engine.requests.job import EncodingJob
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import JobUpdate
from server.runtime.memory import Array
from tests.cuda.libraries import StandIn
from tests.server.captured_runs import CapturedGraph, ForgetfulGraph
from tests.server.worker_harness import MEMORIES

ILLEGAL = 700  # cudaErrorIllegalAddress
MAX_TOKENS, MAX_LENGTH = 128, 40
BUCKETS = TextBuckets.of(MAX_TOKENS, MAX_LENGTH)
_SIZES = st.tuples(st.integers(1, 5000), st.integers(1, 600))


@given(sizes=_SIZES, rows=st.integers(1, 200), tokens=st.integers(1, 600))
def test_buckets_hold_their_texts(sizes: tuple[int, int], rows: int, tokens: int) -> None:
    buckets = TextBuckets.of(*sizes)
    assert len(buckets) == len(set(buckets)) > 0
    found = buckets.find(rows, tokens)
    if found is not None:
        assert found in set(buckets)
        assert found.num_rows >= rows
        assert found.num_tokens == buckets.tokens_for(tokens) >= tokens
    together = buckets.num_together(rows, tokens)
    assert 1 <= together <= rows
    if together < rows:
        assert buckets.find(together, tokens) is not None, "those that stay fill a bucket"


def test_sizes_of_buckets() -> None:
    buckets = TextBuckets.of(4096, 512)
    assert buckets.rows == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    assert buckets.tokens == (*range(16, 129, 16), *range(160, 257, 32), *range(320, 513, 64))
    assert max(bucket.num_rows * bucket.num_tokens for bucket in buckets) == 4096
    assert [buckets.num_together(n, 128) for n in (5, 23, 31, 33)] == [5, 23, 31, 32]
    assert [buckets.num_together(n, 500) for n in (3, 5, 7, 9)] == [3, 5, 7, 8]
    assert buckets.num_together(9, 513) == 9, "longer texts are not padded"


class Encoder:
    """An encoder on a CPU that stands for a GPU, with a worker that records it."""

    def __init__(self, directory: Path, cuda: StandIn) -> None:
        self.manifest: Manifest = read_manifest(directory)
        self.spec = self.manifest.graphs["encode"]
        session = onnxruntime.InferenceSession(
            str(directory / self.spec.file), providers=["CPUExecutionProvider"]
        )
        self.cuda, self.graph = cuda, CapturedGraph(session, cuda)

    def worker(self, graph: CapturedGraph | None = None, *, prepares: bool = True) -> EncoderWorker:
        graph = graph or self.graph
        size = self.manifest.dimensions.vocabulary_size
        padded = PaddedEncoder(self.spec, graph, BUCKETS, MEMORIES["device"], size)
        runner = EncoderRunner(self.spec, graph, padded=padded)
        worker = EncoderWorker("e", runner, BatchLimits(MAX_TOKENS), lambda: 0.0, Unobserved())
        if prepares:
            worker.prepare()
        return worker

    def job(self, rng: random.Random, max_length: int = MAX_LENGTH, **options: Any) -> EncodingJob:
        size = self.manifest.dimensions.vocabulary_size
        ids = tuple(rng.randrange(size) for _ in range(rng.randint(1, max_length)))
        segments = tuple(rng.randrange(2) for _ in ids) if rng.random() < 0.5 else ()
        return EncodingJob(ids, segments, **options)

    def plain(self, job: EncodingJob) -> Array:
        """The output for a text alone, not recorded."""
        (output,) = EncoderRunner(self.spec, self.graph).run([job])
        assert output is not None
        return output.vector


@pytest.fixture(params=["embedder", "judge"])
def encoder(request: pytest.FixtureRequest, head_bundles: Path, cuda: StandIn) -> Iterator[Encoder]:
    made = Encoder(head_bundles / request.param / "1", cuda)
    yield made
    vars(made).clear()


@pytest.fixture
def embedder(head_bundles: Path, cuda: StandIn) -> Iterator[Encoder]:
    made = Encoder(head_bundles / "embedder" / "1", cuda)
    yield made
    vars(made).clear()


def submit(worker: EncoderWorker, jobs: list[EncodingJob]) -> None:
    for id_, job in enumerate(jobs):
        worker.submit(id_, job)


def finish(worker: EncoderWorker) -> tuple[dict[int, JobUpdate], int]:
    """Steps until all texts have ended. Returns their updates, and the most that were left running
    between two steps.
    """
    updates, most = {}, 0
    while worker.has_work:
        for update in worker.step():
            assert update.id not in updates
            updates[update.id] = update
        most = max(most, worker.stats.num_running)
    return updates, most


def assert_right(encoder: Encoder, jobs: list[EncodingJob], updates: dict[int, JobUpdate]) -> None:
    assert updates.keys() == set(range(len(jobs)))
    for id_, job in enumerate(jobs):
        end, encoded = updates[id_].completion, updates[id_].encoded
        assert end is not None
        assert (end.outcome, end.failure) == (Outcome.DONE, "")
        assert encoded is not None
        np.testing.assert_allclose(encoded.vector, encoder.plain(job), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("late", [False, True], ids=["device at once", "device late"])
def test_vectors_are_those_of_texts_alone(encoder: Encoder, late: bool) -> None:
    """A late device copies inputs when results are waited for: they must have stayed."""
    assert can_be_padded(encoder.spec)
    worker = encoder.worker()
    assert worker.stats.num_cuda_graphs == len(BUCKETS) == encoder.graph.num_launches
    encoder.cuda.be_late(late)
    rng = random.Random(5)
    for num_texts, max_length in ((1, 40), (3, 16), (40, 40), (200, 40), (150, 16), (60, 5)):
        jobs = [encoder.job(rng, max_length) for _ in range(num_texts)]
        submit(worker, jobs)
        updates, most = finish(worker)
        assert (most > 0) == (num_texts >= 40), "a run is left to the device if many texts wait"
        assert_right(encoder, jobs, updates)
    assert encoder.graph.num_launches == len(BUCKETS), "each bucket is captured once"


def test_a_run_starts_before_the_one_before_it_is_waited_for(embedder: Encoder) -> None:
    worker = embedder.worker()
    submit(worker, [EncodingJob((5 + id_,) * 32, num_texts=12) for id_ in range(12)])
    embedder.cuda.reset()
    run = ["SetDevice", "MemcpyAsync:in", "GraphLaunch", "MemcpyAsync:out", "EventRecord"]
    assert worker.step() == []
    assert embedder.cuda.calls() == run
    assert len(worker.step()) == 4
    assert embedder.cuda.calls() == [*run, "EventSynchronize"]
    assert (worker.stats.num_waiting, worker.stats.num_running) == (4, 4)
    assert len(worker.step()) == 8, "nothing waits any more"
    assert embedder.cuda.calls() == [*run, *["EventSynchronize"] * 2]
    assert not worker.has_work


def test_a_text_longer_than_all_buckets_is_not_padded(embedder: Encoder) -> None:
    worker, rng = embedder.worker(), random.Random(2)
    jobs = [EncodingJob((5,) * 48), *(embedder.job(rng) for _ in range(30)), EncodingJob((7,) * 45)]
    submit(worker, jobs)
    updates, _ = finish(worker)
    assert_right(embedder, jobs, updates)


def test_vectors_of_tokens_are_not_recorded(embedder: Encoder) -> None:
    worker, rng = embedder.worker(), random.Random(3)
    jobs = [
        embedder.job(rng, token_outputs=(TOKEN_VECTORS,) if index % 5 == 0 else ())
        for index in range(30)
    ]
    submit(worker, jobs)
    updates, _ = finish(worker)
    assert_right(embedder, jobs, updates)
    for id_, job in enumerate(jobs):
        encoded = updates[id_].encoded
        assert encoded is not None
        assert tuple(encoded.of_tokens) == job.token_outputs


@pytest.mark.parametrize("function", ["GraphLaunch", "MemcpyAsync:in", "EventSynchronize"])
def test_texts_of_a_run_that_fails_run_again(
    embedder: Encoder, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker, rng = embedder.worker(), random.Random(4)
    jobs = [embedder.job(rng) for _ in range(40)]
    submit(worker, jobs)
    embedder.cuda.fail(f"cuda{function}", ILLEGAL)
    updates, _ = finish(worker)
    embedder.cuda.reset()
    assert_right(embedder, jobs, updates)
    assert f"cuda{function.partition(':')[0]}: error {ILLEGAL}" in caplog.text
    caplog.clear()  # the errors hold the worker


def test_a_text_that_runs_is_not_cancelled(embedder: Encoder) -> None:
    worker, rng = embedder.worker(), random.Random(6)
    jobs = [embedder.job(rng) for _ in range(60)]
    submit(worker, jobs)
    ended = {update.id: update for update in worker.step()}
    assert worker.stats.num_running > 0
    for id_ in range(60):
        worker.cancel(id_)
    updates, _ = finish(worker)
    outcomes = [update.completion.outcome for update in (ended | updates).values()]  # type: ignore[union-attr]
    assert len(outcomes) == 60
    assert outcomes.count(Outcome.DONE) > 0
    assert outcomes.count(Outcome.CANCELLED) == 60 - outcomes.count(Outcome.DONE) > 0


def test_a_worker_may_go_while_a_run_is_left_to_the_device(embedder: Encoder) -> None:
    """The fixture ``cuda`` checks that all is destroyed."""
    worker, rng = embedder.worker(), random.Random(7)
    embedder.cuda.be_late(True)
    submit(worker, [embedder.job(rng) for _ in range(60)])
    worker.step()
    assert worker.stats.num_running > 0
    embedder.cuda.reset()
    del worker
    assert "EventSynchronize" in embedder.cuda.calls()


def test_recorded_runs_that_differ_are_not_used(
    embedder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    graph = ForgetfulGraph(embedder.graph.session, embedder.cuda)
    worker = embedder.worker(graph)
    assert "differs from a plain one by" in caplog.text
    caplog.clear()  # the error holds the runs
    assert worker.stats.num_cuda_graphs == 0
    jobs = [embedder.job(random.Random(8)) for _ in range(30)]
    submit(worker, jobs)
    updates, most = finish(worker)
    assert most == 0
    assert_right(embedder, jobs, updates)


@pytest.mark.parametrize("records", [False, True], ids=["", "ONNX Runtime records"])
def test_what_cannot_be_captured_is_not_padded(
    embedder: Encoder, caplog: pytest.LogCaptureFixture, records: bool
) -> None:
    """ONNX Runtime's own recordings wait for the device: a plain run is as good."""
    caplog.set_level(logging.INFO)
    graph = CapturedGraph(embedder.graph.session, embedder.cuda, records=records)
    embedder.cuda.fail("cudaStreamEndCapture", 901)
    worker = embedder.worker(graph)
    embedder.cuda.reset()
    assert f"0 of {len(BUCKETS)} sizes of runs are recorded" in caplog.text
    jobs = [embedder.job(random.Random(9)) for _ in range(30)]
    submit(worker, jobs)
    updates, most = finish(worker)
    assert (most, embedder.cuda.calls()) == (0, [])
    assert_right(embedder, jobs, updates)


@pytest.mark.parametrize("name", ["tagger", "filler"])
def test_graphs_with_other_inputs_or_outputs_are_not_padded(head_bundles: Path, name: str) -> None:
    assert not can_be_padded(read_manifest(head_bundles / name / "1").graphs["encode"])
