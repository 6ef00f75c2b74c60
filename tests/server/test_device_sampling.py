"""Sampling on the device returns the host's tokens, and copies whole rows only if needed."""

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
from server.engine.decoding.options import LogitsOptions, LogprobOptions, Sampling
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.device_logits import bind_row_gather
from server.engine.gpu.device_sampler import DeviceSampler, logits_spec
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.engine.scheduler import StepLimits
from server.models.registry import load_bundle
from server.runtime.ort.backend import OrtBackend
from tests.server.company import FAULTS, NUM_SLOTS, POISON, alone, companies, run_together
from tests.server.generating import bench, job
from tests.server.samplers import Copies
from tests.server.test_branching import jobs, same
from tests.server.test_mixes import Mixer, run, told
from tests.serving import ServerProcess, server_process

CAPACITY = Capacity(8, 96, 96)
ADJUSTED = LogitsOptions(1.3, 0.4, 0.2, 3, 2, ((5, 2.0), (9, -50.0)), ((7,), (8, 9)))
SAMPLED = [
    Sampling(0.9, seed=1),
    Sampling(0.8, top_k=7, top_p=0.9, seed=2),
    Sampling(1.1, top_p=0.8, seed=3),
    Sampling(1.5, min_p=0.05, seed=4),
]


@st.composite
def wanted_jobs(draw: st.DrawFn) -> GenerationJob:
    """Jobs of every kind, with and without penalties and log-probabilities."""
    wanted = draw(jobs())
    if wanted.beams is None and not wanted.alternatives and draw(st.booleans()):
        wanted = replace(wanted, sampling=draw(st.sampled_from(SAMPLED)))
    if draw(st.booleans()):
        wanted = replace(wanted, logits_options=ADJUSTED)
    if wanted.beams is None and draw(st.booleans()) and draw(st.booleans()):
        wanted = replace(wanted, logprob_options=LogprobOptions(top_logprobs=2))
    return wanted


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=companies(wanted_jobs()),
    max_batched_tokens=st.integers(1, 64),
    memory=st.sampled_from(["host", "device"]),
    has_buckets=st.booleans(),
)
def test_batched_rows_get_the_same_tokens_as_alone_on_the_host(
    mixed_jobs, max_batched_tokens, memory, has_buckets
) -> None:
    """With the fake runtime; some rows have a NaN or are in a run that fails."""
    mixed = bench(
        num_slots=NUM_SLOTS,
        max_batched_tokens=max_batched_tokens,
        memory=memory,
        has_buckets=has_buckets,
        chooses=True,
        **FAULTS,
    )
    wanted = run_together(mixed, mixed_jobs)
    for id_, one in enumerate(wanted):
        lone = alone(one)
        same(mixed, id_, lone)
        for output in lone.ends_of(0):
            assert logprobs(mixed, id_, output) == logprobs(lone, 0, output)


def logprobs(of: Any, id_: int, output: int) -> list[Any]:
    rows = (progress for progress in of.updates if (progress.id, progress.output) == (id_, output))
    return [value for progress in rows for value in progress.logprobs]


def test_a_prompt_with_a_nan_fails_before_its_prefill_ends() -> None:
    mixed = bench(chooses=True, memory="device", max_batched_tokens=8, **FAULTS)
    mixed.submit(0, job([POISON, *range(1, 30)], 4))
    mixed.submit(1, job([5], 4))
    mixed.run()
    assert mixed.outcomes[0] == [Outcome.FAILED]
    assert mixed.recorder.num_tokens("prefill") < 30
    assert mixed.tokens_of(1)


class DeviceSamplingMixer(Mixer):
    """Built as the server does for a device, and records the rows that are copied."""

    def __init__(self, path: Path) -> None:
        backend = OrtBackend("cpu", 1, has_device_memory=True)
        super().__init__(load_bundle(path, backend, 96))
        self.copies = Copies(backend)

    def generator(self) -> GenerationWorker:
        manifest, (replica,) = self.model.manifest, self.model.replicas
        spec, graphs = manifest.graphs["decode"], replica.graphs
        logits = logits_spec(spec)
        runner = ModelRunner(
            spec,
            graphs["decode"],
            graphs.get("encode"),
            CAPACITY,
            memory=replica.memory,
            row_gather=bind_row_gather(self.copies.load, logits),
        )
        limits = StepLimits(CAPACITY.num_slots, 64, min_chunk=8)
        sampler = DeviceSampler(self.copies.load, logits)
        return GenerationWorker(
            "mixed", runner, CAPACITY, limits, lambda: 0.0, Unobserved(), sampler
        )


@pytest.fixture(scope="module", params=["tiny-decoder", "dates"])
def mixers(request: pytest.FixtureRequest, tiny_bundles: Path) -> tuple[Mixer, DeviceSamplingMixer]:
    """Both run the same real graphs."""
    path = tiny_bundles / request.param / "1"
    return Mixer(load_bundle(path, OrtBackend("cpu", 1), 96)), DeviceSamplingMixer(path)


def test_served_tokens_match_the_host(mixers: tuple[Mixer, DeviceSamplingMixer]) -> None:
    on_host, on_device = mixers
    rng, generator = random.Random(11), on_device.generator()
    for number in range(20):
        some = {}
        for index in range(rng.randrange(2, 7)):
            wanted = on_host.job(rng)
            if wanted.beams is None and rng.random() < 0.5:
                options = replace(rng.choice(SAMPLED), seed=rng.randrange(5))
                wanted = replace(wanted, sampling=options, num_outputs=rng.randrange(1, 3))
            if rng.random() < 0.3:
                wanted = replace(wanted, logits_options=ADJUSTED)
            some[10 * number + index] = wanted
        updates = []
        for id_, wanted in some.items():
            updates += generator.step()
            generator.submit(id_, wanted)
        updates += run(generator)
        for id_, wanted in some.items():
            assert told(updates, id_) == on_host.alone(wanted)


def test_only_rows_that_need_whole_logits_are_copied(
    mixers: tuple[Mixer, DeviceSamplingMixer],
) -> None:
    on_host, on_device = mixers
    copies, plain = on_device.copies, on_host.job(random.Random(3))
    plain = replace(plain, beams=None, num_outputs=1, sampling=Sampling(), eos=frozenset())
    jobs_ = [
        plain,
        replace(plain, logits_options=ADJUSTED),
        *(replace(plain, sampling=options) for options in SAMPLED),
    ]
    for last in ([], [replace(plain, logprob_options=LogprobOptions(top_logprobs=1))]):
        copies.rows.clear()
        generator, before = on_device.generator(), copies.num_runs
        for id_, wanted in enumerate([*jobs_, *last]):
            generator.submit(id_, wanted)
        updates = run(generator)
        for id_, wanted in enumerate([*jobs_, *last]):
            assert told(updates, id_) == on_host.alone(wanted)
        assert copies.num_runs > before
        assert len(copies.rows) == len(last) * plain.max_new_tokens


@pytest.fixture(scope="module", params=["host", "device"])
def server(request: pytest.FixtureRequest, tiny_bundles: Path) -> Iterator[ServerProcess]:
    """Whose lanes run with graphs of one thread or of both, or over a device's memory."""
    memory = ["--device-memory", "--lanes", "1"] if request.param == "device" else ["--lanes", "2"]
    options = ["--threads", "2", "--slots", "8", "--sampling", "device", *memory]
    with server_process(tiny_bundles, *options) as running:
        yield running


def test_a_server_answers_as_its_host_would(server: ServerProcess, tiny_bundles: Path) -> None:
    """Unary and streamed, with seeds and penalties, in one batch."""
    name, text = "tiny-decoder", "37,38,39,"
    on_host = Mixer(load_bundle(tiny_bundles / name / "1", OrtBackend("cpu", 1), 96))
    (ids,) = on_host.model.tokenizer.encode([text])
    plain = GenerationJob(ids, 12, eos=frozenset())
    asked: list[tuple[GenerationJob, dict[str, Any]]] = [
        (plain, {}),
        (replace(plain, sampling=SAMPLED[0]), {"temperature": 0.9, "seed": 1}),
        (
            replace(plain, sampling=SAMPLED[2], logits_options=LogitsOptions(1.5, 0.5)),
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
        for wanted, options in asked:
            options |= {"max_new_tokens": 12, "ignore_eos": True, "token_ids": True}
            expected = on_host.alone(wanted)[0]
            streams = [client.generate_stream(name, [text], **options) for _ in range(3)]
            assert list(client.generate(name, [text], **options).outputs[0].token_ids) == expected
            for stream in streams:
                assert [id_ for piece in stream for id_ in piece.token_ids] == expected
