"""LoRA adapters in one batch: the tokens of each job alone, and those of merged bundles."""

import dataclasses
import itertools
import random
from functools import cache
from pathlib import Path

import pytest

from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import Beams, LogitsOptions, LogprobOptions, Sampling
from server.engine.generation_worker import GenerationWorker
from server.engine.lane import never
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import Delivery, GenerationJob
from server.engine.requests.placement import PrefixLanes, block_hashes
from server.engine.requests.update import JobUpdate
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.runtime.ort.backend import OrtBackend
from tests.adapter_models import ADAPTERS, MAX_POSITIONS, AdaptedModel, adapted_model
from tests.server.test_batch_invariance import run, tokens_by_output

NUM_SLOTS, NUM_PREFIX_SLOTS, NUM_MIXES = 6, 4, 60
NUM_TOKENS = 10


@pytest.fixture(scope="module", params=["llama", pytest.param("t5", marks=pytest.mark.slow)])
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Bundles":
    root = tmp_path_factory.mktemp("adapted")
    model = adapted_model(root, request.param)
    model.write(root / "bundles", "model")
    return Bundles(root / "bundles", model)


class Bundles:
    """A bundle with adapters, and those with merged ones."""

    def __init__(self, root: Path, adapted: AdaptedModel) -> None:
        self._root, self._adapted = root, adapted
        self.model = self._load("model")
        self.merged = cache(self._merged)
        self.tokens_alone = cache(self._tokens_alone)

    def _load(self, name: str) -> Model:
        return load_bundle(self._root / name / "1", OrtBackend("cpu", 1), MAX_POSITIONS)

    def _merged(self, adapter: int) -> Model:
        if not adapter:
            return self.model
        name = ADAPTERS[adapter - 1]
        self._adapted.write_merged(self._root, name, f"merged-{name}")
        return self._load(f"merged-{name}")

    def _tokens_alone(self, job: GenerationJob) -> dict[int, list[int]]:
        worker = make_worker(self.model)
        worker.submit(0, job)
        return tokens_by_output(run(worker), 0)

    def job(self, rng: random.Random) -> GenerationJob:
        """A random prompt or source, decoding method and adapter."""
        start = self.model.manifest.special_tokens.decoder_start
        # Prompts with the same beginning: an adapter must not use the cached prefix of another.
        ids = (*range(4, rng.choice([7, 11, 24, 40, 40])), rng.randrange(4, 60))
        prompt, source = (ids, ()) if start is None else ((start,), ids)
        job = GenerationJob(prompt, NUM_TOKENS, source, adapter=rng.randrange(3))
        seed = rng.randrange(3)
        return rng.choice(
            [
                job,
                job,
                job,
                dataclasses.replace(job, sampling=Sampling(0.8, seed=seed), num_outputs=2),
                dataclasses.replace(job, beams=Beams(3), num_outputs=2),
                dataclasses.replace(job, logits_options=LogitsOptions(repetition_penalty=1.3)),
            ]
        )


def make_worker(model: Model) -> GenerationWorker:
    spec, graphs = model.manifest.graphs["decode"], model.replicas[0].graphs
    capacity = Capacity(NUM_SLOTS, MAX_POSITIONS, MAX_POSITIONS, NUM_PREFIX_SLOTS)
    runner = ModelRunner(
        spec,
        graphs["decode"],
        graphs.get("encode"),
        capacity,
        memory=model.replicas[0].memory,
    )
    clock = itertools.count().__next__
    limits = StepLimits(NUM_SLOTS, 64, min_chunk=8)
    return GenerationWorker("model", runner, capacity, limits, lambda: float(clock()), Unobserved())


def test_a_job_has_the_same_tokens_whatever_shares_its_batch(adapted: Bundles) -> None:
    rng = random.Random(7)
    worker, ids = make_worker(adapted.model), itertools.count()
    for mix in range(NUM_MIXES):
        delivery = Delivery.WHOLE if mix % 2 else Delivery.EACH
        jobs = {next(ids): adapted.job(rng) for _ in range(rng.randrange(2, 7))}
        updates: list[JobUpdate] = []
        for id_, job in jobs.items():
            for _ in range(rng.randrange(3)):
                updates += worker.step(lambda: rng.random() < 0.7)
            worker.submit(id_, dataclasses.replace(job, delivery=delivery))
        updates += run(worker, lambda: rng.random() < 0.7)
        for id_, job in jobs.items():
            assert tokens_by_output(updates, id_) == adapted.tokens_alone(job)


@pytest.mark.parametrize("adapter", [1, 2])
def test_an_adapter_has_the_tokens_of_its_merged_bundle(adapted: Bundles, adapter: int) -> None:
    rng = random.Random(adapter)
    merged = make_worker(adapted.merged(adapter))
    differs = False
    for id_ in range(12):
        job = dataclasses.replace(adapted.job(rng), adapter=adapter)
        merged.submit(id_, dataclasses.replace(job, adapter=0))
        tokens = adapted.tokens_alone(job)
        assert tokens_by_output(run(merged), id_) == tokens
        differs |= tokens != adapted.tokens_alone(dataclasses.replace(job, adapter=0))
    assert differs


def test_scores_are_those_of_the_merged_bundle(adapted: Bundles) -> None:
    prompt = (0, *range(5, 45))
    source = () if adapted.model.manifest.special_tokens.decoder_start is None else (9, 8, 7)
    job = GenerationJob(prompt, 0, source, logprob_options=LogprobOptions(prompt_logprobs=0))
    for adapter in (1, 2):
        worker, merged = make_worker(adapted.model), make_worker(adapted.merged(adapter))
        worker.submit(0, dataclasses.replace(job, adapter=adapter))
        merged.submit(0, job)
        found, expected = (
            [one.logprob for update in run(each) for one in update.prompt.logprobs]
            for each in (worker, merged)
        )
        assert len(found) == len(prompt) - 1
        assert found == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("adapted", ["llama"], indirect=True)
def test_a_cached_prefix_is_reused_by_the_same_adapter_only(adapted: Bundles) -> None:
    prompt = tuple(range(4, 60))
    worker, ids = make_worker(adapted.model), itertools.count()
    reused = []
    for adapter in (0, 1, 1, 2, 0):
        id_, job = next(ids), GenerationJob(prompt, 2, adapter=adapter)
        worker.submit(id_, job)
        updates = run(worker)
        assert tokens_by_output(updates, id_) == adapted.tokens_alone(job)
        (completion,) = (update.completion for update in updates if update.completion is not None)
        reused.append(completion.num_reused_tokens > 0)
    assert reused == [False, False, True, False, True]


def test_a_cancelled_job_leaves_its_slot_to_another_adapter(adapted: Bundles) -> None:
    rng = random.Random(3)
    worker = make_worker(adapted.model)
    first, second = (
        dataclasses.replace(adapted.job(rng), adapter=adapter, num_outputs=1, beams=None)
        for adapter in (1, 2)
    )
    worker.submit(0, first)
    worker.step(never)
    worker.cancel(0)
    worker.submit(1, second)
    assert tokens_by_output(run(worker), 1) == adapted.tokens_alone(second)


def test_lanes_with_a_cached_prompt_of_another_adapter_are_no_better() -> None:
    lanes, prompt = PrefixLanes(), tuple(range(64))
    scopes = {GenerationJob(prompt, 1, adapter=adapter).prefix_scope for adapter in range(3)}
    assert len(scopes) == 3
    lanes.record(block_hashes(0, GenerationJob(prompt, 1).prefix_scope, prompt), 1)
    assert lanes.find(block_hashes(0, GenerationJob(prompt, 1).prefix_scope, prompt)) == 1
    other = GenerationJob(prompt, 1, adapter=1).prefix_scope
    assert lanes.find(block_hashes(0, other, prompt)) is None
