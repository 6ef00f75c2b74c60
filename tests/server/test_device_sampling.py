"""Device sampling matches host sampling and copies full logits rows only if needed."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.sync import Client
from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.bad_words import BadWordIds
from server.engine.decoding.options import Beams, LogitsOptions, LogprobOptions, Sampling
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.device_logits import LogitsReader
from server.engine.gpu.device_sampler import DeviceSampler, logits_spec
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.engine.scheduler import StepLimits
from server.models.registry import load_bundle
from server.runtime.ort.backend import OrtBackend
from tests.server.mixed_batches import (
    FAULTS,
    NUM_SLOTS,
    POISON,
    mixed_batches,
    run_alone_with_faults,
    run_batched,
)
from tests.server.samplers import GraphRecorder
from tests.server.test_batch_invariance import BatchRunner, run, tokens_by_output
from tests.server.test_forking import assert_same_output, generation_jobs
from tests.server.worker_harness import make_harness, make_job
from tests.serving import ServerProcess, server_process

CAPACITY = Capacity(8, 96, 96)
BAD_WORDS = BadWordIds([(7,), (8, 9)])
LOGITS_OPTIONS = LogitsOptions(1.3, 0.4, 0.2, 3, 2, ((5, 2.0), (9, -50.0)), BAD_WORDS)
FORBIDDING = LogitsOptions(no_repeat_ngram_size=2, min_new_tokens=3, bad_word_ids=BAD_WORDS)
SAMPLED = [
    Sampling(0.9, seed=1),
    Sampling(0.8, top_k=7, top_p=0.9, seed=2),
    Sampling(1.1, top_p=0.8, seed=3),
    Sampling(1.5, min_p=0.05, seed=4),
]


@st.composite
def sampled_jobs(draw: st.DrawFn) -> GenerationJob:
    """Jobs of all decoding methods, with and without penalties and logprobs."""
    job = draw(generation_jobs())
    if job.beams is None and not job.alternatives and draw(st.booleans()):
        job = replace(job, sampling=draw(st.sampled_from(SAMPLED)))
    if draw(st.booleans()):
        job = replace(job, logits_options=LOGITS_OPTIONS)
    if job.beams is None and draw(st.booleans()) and draw(st.booleans()):
        job = replace(job, logprob_options=LogprobOptions(top_logprobs=2))
    return job


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    arrivals=mixed_batches(sampled_jobs()),
    max_batched_tokens=st.integers(1, 64),
    memory=st.sampled_from(["host", "device"]),
    has_buckets=st.booleans(),
)
def test_device_sampling_in_batches_matches_host_sampling_alone(
    arrivals, max_batched_tokens, memory, has_buckets
) -> None:
    """On the fake runtime. Some rows are NaN or in a failing run."""
    batched = make_harness(
        num_slots=NUM_SLOTS,
        max_batched_tokens=max_batched_tokens,
        memory=memory,
        has_buckets=has_buckets,
        samples_on_device=True,
        **FAULTS,
    )
    jobs = run_batched(batched, arrivals)
    for id_, job in enumerate(jobs):
        single = run_alone_with_faults(job)
        assert_same_output(batched, id_, single, max_difference=1e-5)
        for output in single.completions_of(0):
            found, expected = logprobs(batched, id_, output), logprobs(single, 0, output)
            assert [token for token, _ in found] == [token for token, _ in expected]
            values = [value for _, value in expected]
            assert [value for _, value in found] == pytest.approx(values, abs=1e-5)


def logprobs(harness: Any, id_: int, output: int) -> list[tuple[int | None, float]]:
    """Returns the log-probability of each token, then the likeliest ids and theirs."""
    updates = (update for update in harness.updates if (update.id, update.output) == (id_, output))
    found: list[tuple[int | None, float]] = []
    for update in updates:
        for value in update.logprobs:
            found += [(None, value.logprob), *value.top]
    return found


def test_prompt_with_nan_fails_before_its_prefill_ends() -> None:
    batched = make_harness(samples_on_device=True, memory="device", max_batched_tokens=8, **FAULTS)
    batched.submit(0, make_job([POISON, *range(1, 30)], 4))
    batched.submit(1, make_job([5], 4))
    batched.run()
    assert batched.outcomes[0] == [Outcome.FAILED]
    assert batched.recorder.num_tokens("prefill") < 30
    assert batched.tokens_of(1)


class DeviceSamplingRunner(BatchRunner):
    """Samples on the device, set up like the server, and records copied logits rows."""

    def __init__(self, path: Path) -> None:
        backend = OrtBackend("cpu", 1, has_device_memory=True)
        super().__init__(load_bundle(path, backend, 96))
        self.copies = GraphRecorder(backend)

    def make_worker(self) -> GenerationWorker:
        manifest, (replica,) = self.model.manifest, self.model.replicas
        spec, graphs = manifest.graphs["decode"], replica.graphs
        logits = logits_spec(spec)
        runner = ModelRunner(
            spec,
            graphs["decode"],
            graphs.get("encode"),
            CAPACITY,
            memory=replica.memory,
            reader=LogitsReader(self.copies.load, logits),
        )
        limits = StepLimits(CAPACITY.num_slots, 64, min_chunk=8)
        sampler = DeviceSampler(self.copies.load, logits)
        return GenerationWorker(
            "mixed", runner, CAPACITY, limits, lambda: 0.0, Unobserved(), sampler
        )


@pytest.fixture(scope="module", params=["tiny-decoder", "dates"])
def runners(
    request: pytest.FixtureRequest, tiny_bundles: Path
) -> tuple[BatchRunner, DeviceSamplingRunner]:
    """Host and device sampling on the same real graphs."""
    path = tiny_bundles / request.param / "1"
    return BatchRunner(load_bundle(path, OrtBackend("cpu", 1), 96)), DeviceSamplingRunner(path)


def test_real_graphs_sample_the_same_tokens_as_the_host(
    runners: tuple[BatchRunner, DeviceSamplingRunner],
) -> None:
    on_host, on_device = runners
    rng, worker = random.Random(11), on_device.make_worker()
    for number in range(20):
        jobs = {}
        for index in range(rng.randrange(2, 7)):
            job = on_host.job(rng)
            if job.beams is None and rng.random() < 0.5:
                options = replace(rng.choice(SAMPLED), seed=rng.randrange(5))
                job = replace(job, sampling=options, num_outputs=rng.randrange(1, 3))
            if rng.random() < 0.3:
                job = replace(job, logits_options=LOGITS_OPTIONS)
            jobs[10 * number + index] = job
        updates = []
        for id_, job in jobs.items():
            updates += worker.step()
            worker.submit(id_, job)
        updates += run(worker)
        for id_, job in jobs.items():
            assert tokens_by_output(updates, id_) == on_host.tokens_alone(job)


def test_copies_only_rows_that_need_full_logits(
    runners: tuple[BatchRunner, DeviceSamplingRunner],
) -> None:
    on_host, on_device = runners
    graphs, greedy = on_device.copies, on_host.job(random.Random(3))
    greedy = replace(greedy, beams=None, num_outputs=1, sampling=Sampling(), eos=frozenset())
    with_logprobs = replace(greedy, logprob_options=LogprobOptions(top_logprobs=3))
    jobs = [
        greedy,
        replace(greedy, logits_options=LOGITS_OPTIONS),
        *(replace(greedy, sampling=options) for options in SAMPLED),
        with_logprobs,
        *(replace(with_logprobs, sampling=options) for options in SAMPLED),
        replace(greedy, beams=Beams(2), num_outputs=2),
        replace(greedy, beams=Beams(2), logits_options=FORBIDDING),
    ]
    for last in ([], [replace(with_logprobs, sampling=Sampling(1.0, typical_p=0.5, seed=1))]):
        graphs.rows.clear()
        worker, before = on_device.make_worker(), graphs.num_runs
        for id_, job in enumerate([*jobs, *last]):
            worker.submit(id_, job)
        updates = run(worker)
        for id_, job in enumerate([*jobs, *last]):
            assert tokens_by_output(updates, id_) == on_host.tokens_alone(job)
        assert graphs.num_runs > before
        assert len(graphs.rows) == len(last) * greedy.max_new_tokens


@pytest.mark.parametrize("num_top", [0, 3])
def test_prompts_are_scored_where_their_logits_are(
    runners: tuple[BatchRunner, DeviceSamplingRunner], num_top: int
) -> None:
    """One row is copied: that after the last token."""
    on_host, on_device = runners
    wanted = LogprobOptions(prompt_logprobs=num_top)
    job = replace(on_host.job(random.Random(3)), max_new_tokens=0, logprob_options=wanted)
    job = replace(job, prompt=tuple(range(2, 32)), beams=None, num_outputs=1)
    on_device.copies.rows.clear()
    scores = []
    for runner in runners:
        worker = runner.make_worker()
        worker.submit(0, job)
        scores.append([value for update in run(worker) for value in update.prompt.logprobs])
    expected, found = scores
    assert len(on_device.copies.rows) == 1
    assert len(found) == len(job.prompt) - 1
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        values = [value for _, value in other.top]
        assert [value for _, value in one.top] == pytest.approx(values, abs=1e-5)


@pytest.fixture(scope="module", params=["host", "device"])
def server(request: pytest.FixtureRequest, tiny_bundles: Path) -> Iterator[ServerProcess]:
    """A server with device sampling: two lanes on the host, or one lane in device memory."""
    memory = ["--device-memory", "--lanes", "1"] if request.param == "device" else ["--lanes", "2"]
    options = ["--threads", "2", "--slots", "8", "--sampling", "device", *memory]
    with server_process(tiny_bundles, *options) as running:
        yield running


def test_server_returns_the_same_text_as_host_sampling(
    server: ServerProcess, tiny_bundles: Path
) -> None:
    """Unary and streaming requests, with seeds and penalties, in one batch."""
    name, text = "tiny-decoder", "37,38,39,"
    on_host = BatchRunner(load_bundle(tiny_bundles / name / "1", OrtBackend("cpu", 1), 96))
    (ids,) = on_host.model.tokenizer.encode([text])
    greedy = GenerationJob(ids, 12, eos=frozenset())
    requests: list[tuple[GenerationJob, dict[str, Any]]] = [
        (greedy, {}),
        (replace(greedy, sampling=SAMPLED[0]), {"temperature": 0.9, "seed": 1}),
        (
            replace(greedy, sampling=SAMPLED[2], logits_options=LogitsOptions(1.5, 0.5)),
            {
                "temperature": 1.1,
                "top_p": 0.8,
                "seed": 3,
                "repetition_penalty": 1.5,
                "presence_penalty": 0.5,
            },
        ),
    ]
    with Client(server.target, timeout_seconds=60) as client:
        for job, options in requests:
            options |= {"max_new_tokens": 12, "ignore_eos": True, "token_ids": True}
            expected = on_host.tokens_alone(job)[0]
            streams = [client.generate_stream(name, [text], **options) for _ in range(3)]
            assert list(client.generate(name, [text], **options).outputs[0].token_ids) == expected
            for stream in streams:
                assert [id_ for chunk in stream for id_ in chunk.token_ids] == expected
