"""Batch invariance on real graphs: 500 random batches give the same tokens as single jobs."""

import dataclasses
import itertools
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import Beams, LogitsOptions, Sampling
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.buckets import Buckets
from server.engine.lane import never
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import Delivery, GenerationJob
from server.engine.requests.update import JobUpdate
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.runtime.ort.backend import OrtBackend
from tests import tiny
from tests.faults.record import record

NUM_MIXES = {
    "tiny-decoder": 400,
    "dates": 100,
    "tiny-gru": 100,
    "tiny-gru-int8": 100,
    "tiny-hybrid": 100,
    "tiny-hybrid-int8": 100,
}
NUM_SLOTS = 8
MAX_NEW_TOKENS = 14


class BatchRunner:
    """Runs random jobs of one tiny model; caches the tokens of each job run alone."""

    def __init__(self, model: Model, *, has_buckets: bool = False) -> None:
        self.model = model
        self._buckets = Buckets.of(NUM_SLOTS, 96) if has_buckets else None
        self.tokens_alone = cache(self._tokens_alone)

    def job(self, rng: random.Random) -> GenerationJob:
        """A random prompt or source with a random decoding method."""
        special = self.model.manifest.special_tokens
        text = self._text(rng)
        (ids,) = self.model.tokenizer.encode([text])
        prompt: tuple[int, ...] = ids
        source: tuple[int, ...] = ()
        if special.decoder_start is not None:
            prompt, source = (special.decoder_start,), ids
        job = GenerationJob(prompt, MAX_NEW_TOKENS, source, frozenset(special.eos))
        seed = rng.randrange(4)
        return rng.choice(
            [
                job,
                job,
                dataclasses.replace(job, sampling=Sampling(0.8, top_p=0.9, seed=seed)),
                dataclasses.replace(job, beams=Beams(3), num_outputs=2),
                dataclasses.replace(job, logits_options=LogitsOptions(repetition_penalty=1.3)),
            ]
        )

    def _text(self, rng: random.Random) -> str:
        if self.model.manifest.special_tokens.decoder_start is not None:
            return rng.choice(tiny.held_out_dates(40))[0]
        first = rng.randrange(20, 190)
        return ",".join(str(first + k) for k in range(rng.randrange(1, 12))) + ","

    def make_worker(self) -> GenerationWorker:
        spec = self.model.manifest.graphs["decode"]
        capacity = Capacity(NUM_SLOTS, 96, 96)
        graphs = self.model.replicas[0].graphs
        memory = self.model.replicas[0].memory
        runner = ModelRunner(
            spec,
            graphs["decode"],
            graphs.get("encode"),
            capacity,
            memory=memory,
            buckets=self._buckets,
        )
        limits = StepLimits(NUM_SLOTS, 64, min_chunk=8)
        clock = itertools.count().__next__
        return GenerationWorker(
            "mixed", runner, capacity, limits, lambda: float(clock()), Unobserved()
        )

    def _tokens_alone(self, job: GenerationJob) -> dict[int, list[int]]:
        worker = self.make_worker()
        worker.submit(0, job)
        return tokens_by_output(run(worker), 0)


def run(worker: GenerationWorker, may_continue: Callable[[], bool] = never) -> list[JobUpdate]:
    updates: list[JobUpdate] = []
    while worker.has_work:
        updates += worker.step(may_continue)
    return updates


def tokens_by_output(updates: list[JobUpdate], id_: int) -> dict[int, list[int]]:
    """Tokens of a job, by output index."""
    outputs: dict[int, list[int]] = {}
    for update in updates:
        if update.id == id_:
            assert update.completion is None or update.completion.is_success
            outputs.setdefault(update.output, []).extend(update.tokens)
    return outputs


@pytest.mark.parametrize(
    ("bundles", "name"),
    [
        ("tiny_bundles", "tiny-decoder"),
        pytest.param("tiny_bundles", "dates", marks=pytest.mark.slow),
        pytest.param("recurrent_bundles", "tiny-gru", marks=pytest.mark.slow),
        pytest.param("recurrent_bundles", "tiny-gru-int8", marks=pytest.mark.slow),
        ("hybrid_bundles", "tiny-hybrid"),
        ("hybrid_bundles", "tiny-hybrid-int8"),
    ],
)
def test_batching_does_not_change_tokens_of_real_graphs(
    request: pytest.FixtureRequest, bundles: str, name: str
) -> None:
    folder: Path = request.getfixturevalue(bundles)
    runner = BatchRunner(load_bundle(folder / name / "1", OrtBackend("cpu", 1), 96))
    rng = random.Random(20_221)
    worker, ids = runner.make_worker(), itertools.count()
    num_requests = 0
    for mix in range(NUM_MIXES[name]):
        # Outputs that are delivered whole: steps have several decode runs.
        delivery = Delivery.WHOLE if mix % 2 else Delivery.EACH
        jobs = {next(ids): runner.job(rng) for _ in range(rng.randrange(2, 7))}
        updates: list[JobUpdate] = []
        for id_, job in jobs.items():
            for _ in range(rng.randrange(4)):
                updates += worker.step(lambda: rng.random() < 0.7)
            worker.submit(id_, dataclasses.replace(job, delivery=delivery))
        updates += run(worker, lambda: rng.random() < 0.7)
        for id_, job in jobs.items():
            assert tokens_by_output(updates, id_) == runner.tokens_alone(job)
        num_requests += len(jobs)
    record(
        15,
        f"greedy, sampled and beam search requests in one batch, {name}",
        "the same request gives the same tokens, whatever shares the batch",
        mixes=NUM_MIXES[name],
        requests=num_requests,
        identical=num_requests,
    )
