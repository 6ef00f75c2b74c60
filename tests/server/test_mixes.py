"""The same request gives the same tokens, whatever shares the batch: real graphs, 500 mixes."""

import dataclasses
import itertools
import random
from functools import cache
from pathlib import Path

import pytest

from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import Beams, LogitsOptions, Sampling
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.buckets import Buckets
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.requests.update import JobUpdate
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.runtime.ort.backend import OrtBackend
from tests import tiny
from tests.faults.record import record

NUM_MIXES = {"tiny-decoder": 400, "dates": 100}
NUM_SLOTS = 8
MAX_NEW_TOKENS = 14


class Mixer:
    """One tiny model and what each of its jobs gives alone."""

    def __init__(self, model: Model, *, has_buckets: bool = False) -> None:
        self.model = model
        self._buckets = Buckets.of(NUM_SLOTS, 96) if has_buckets else None
        self.alone = cache(self._alone)

    def job(self, rng: random.Random) -> GenerationJob:
        """A prompt or source, decoded in one of several ways."""
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
        if self.model.manifest.name == "dates":
            return rng.choice(tiny.dates()[1][:40])[0]
        first = rng.randrange(20, 190)
        return ",".join(str(first + k) for k in range(rng.randrange(1, 12))) + ","

    def generator(self) -> GenerationWorker:
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

    def _alone(self, job: GenerationJob) -> dict[int, list[int]]:
        generator = self.generator()
        generator.submit(0, job)
        return told(run(generator), 0)


def run(generator: GenerationWorker) -> list[JobUpdate]:
    updates: list[JobUpdate] = []
    while generator.has_work:
        updates += generator.step()
    return updates


def told(updates: list[JobUpdate], id_: int) -> dict[int, list[int]]:
    """Tokens by output."""
    outputs: dict[int, list[int]] = {}
    for progress in updates:
        if progress.id == id_:
            outputs.setdefault(progress.output, []).extend(progress.tokens)
    return outputs


@pytest.mark.parametrize("name", NUM_MIXES)
def test_five_hundred_mixes(tiny_bundles: Path, name: str) -> None:
    mixer = Mixer(load_bundle(tiny_bundles / name / "1", OrtBackend("cpu", 1), 96))
    rng = random.Random(20_221)
    generator, ids = mixer.generator(), itertools.count()
    num_requests = 0
    for _ in range(NUM_MIXES[name]):
        jobs = {next(ids): mixer.job(rng) for _ in range(rng.randrange(2, 7))}
        updates: list[JobUpdate] = []
        for id_, job in jobs.items():
            for _ in range(rng.randrange(4)):
                updates += generator.step()
            generator.submit(id_, job)
        updates += run(generator)
        for id_, job in jobs.items():
            assert told(updates, id_) == mixer.alone(job)
        num_requests += len(jobs)
    record(
        15,
        f"greedy, sampled and beam search requests in one batch, {name}",
        "the same request gives the same tokens, whatever shares the batch",
        mixes=NUM_MIXES[name],
        requests=num_requests,
        identical=num_requests,
    )
