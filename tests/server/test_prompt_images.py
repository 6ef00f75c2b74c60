"""Images in prompts: prefills in chunks and batches, reuse of cached images, and failures."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.bundle import ENCODE_IMAGES
from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import Beams, LogitsOptions, LogprobOptions, Sampling
from server.engine.generation_worker import GenerationWorker
from server.engine.model_runner import ModelRunner
from server.engine.observer import RunReport, Unobserved
from server.engine.prompt_images import ImageEncoder
from server.engine.requests.job import Delivery, GenerationJob, PromptImage
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.placement import Placement
from server.engine.requests.update import Completion, JobUpdate
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.runtime.ort.backend import OrtBackend

NUM_SLOTS, MAX_LENGTH, NUM_NEW = 4, 256, 12
# Values of all pixels of an image whose run fails, or whose vectors are not finite.
FAILING, POISON = 255, 254


@pytest.fixture(scope="module")
def model(vision_models: Path) -> Model:
    return load_bundle(vision_models / "bundles" / "llava" / "1", OrtBackend("cpu", 1), MAX_LENGTH)


class Runs(Unobserved):
    """Records runs."""

    def __init__(self) -> None:
        self.reports: list[RunReport] = []

    def on_run(self, model: str, report: RunReport) -> None:
        del model
        self.reports.append(report)

    def count(self, phase: str) -> int:
        return sum(report.phase == phase for report in self.reports)


class FailingEncoder(ImageEncoder):
    """Fails for images of one value."""

    def encode(self, image: PromptImage) -> Any:
        if image.pixels.min() == FAILING:
            raise RuntimeError("a white image")
        vectors = super().encode(image)
        return vectors * np.nan if image.pixels.min() == POISON else vectors


class Lane:
    """A worker, and its updates."""

    def __init__(
        self,
        model: Model,
        max_batched_tokens: int = 64,
        prefix_slots: int = 4,
        *,
        allows_drafts: bool = True,
    ) -> None:
        replica, self.runs = model.replicas[0], Runs()
        capacity = Capacity(NUM_SLOTS, MAX_LENGTH, 1, prefix_slots)
        runner = ModelRunner(
            model.manifest.graphs["decode"],
            replica.graphs["decode"],
            None,
            capacity,
            memory=replica.memory,
        )
        runner.images = FailingEncoder(replica.graphs[ENCODE_IMAGES], runner.progress)
        clock = itertools.count()
        self.worker = GenerationWorker(
            *("vision", runner, capacity, StepLimits(NUM_SLOTS, max_batched_tokens, min_chunk=4)),
            lambda: float(next(clock)),
            self.runs,
            allows_drafts=allows_drafts,
        )
        self.updates: list[JobUpdate] = []

    def step(self, may_continue: Callable[[], bool] = lambda: False) -> None:
        self.updates += self.worker.step(may_continue)
        self.worker.check()

    def run(self) -> None:
        while self.worker.has_work:
            self.step()

    def tokens(self, id_: int) -> list[list[int]]:
        outputs: dict[int, list[int]] = {}
        for update in self.updates:
            if update.id == id_:
                outputs.setdefault(update.output, []).extend(update.tokens)
        return [outputs[output] for output in sorted(outputs)]

    def completion(self, id_: int) -> Completion:
        return next(u.completion for u in self.updates if u.id == id_ and u.completion is not None)


def picture(model: Model, seed: int) -> NDArray[np.uint8]:
    spec = model.manifest.image
    assert spec is not None
    shape = (spec.height, spec.width, spec.num_channels)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def job(model: Model, *parts: int | NDArray[np.uint8], seed: int = 0) -> GenerationJob:
    """A prompt of ``parts``: a number is that many random tokens."""
    spec, rng = model.manifest.image, random.Random(seed)
    assert spec is not None
    assert spec.prompt is not None
    tokens: list[int] = []
    images: list[PromptImage] = []
    for part in parts:
        if isinstance(part, int):
            tokens += [rng.randrange(5, 90) for _ in range(part)]
        else:
            key = -1 - int.from_bytes(part.tobytes(), "big")
            images.append(PromptImage(len(tokens), spec.num_tokens, part, key))
            tokens += [spec.prompt.token] * spec.num_tokens
    return GenerationJob(tuple(tokens), NUM_NEW, images=tuple(images))


def alone(model: Model, submitted: GenerationJob) -> list[list[int]]:
    lane = Lane(model, max_batched_tokens=256, prefix_slots=0)
    lane.worker.submit(0, submitted)
    lane.run()
    assert lane.completion(0).is_success
    return lane.tokens(0)


def test_tokens_depend_on_the_image(model: Model) -> None:
    first, second = (alone(model, job(model, 3, picture(model, seed), 9)) for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize("max_batched_tokens", [1, 4, 5, 9, 16])
def test_chunks_of_the_prompt_do_not_change_tokens(model: Model, max_batched_tokens: int) -> None:
    submitted = job(model, 3, picture(model, 1), 1, picture(model, 2), 9)
    lane = Lane(model, max_batched_tokens)
    lane.worker.submit(0, submitted)
    lane.run()
    assert lane.tokens(0) == alone(model, submitted)
    assert lane.runs.count("prefill") > 1
    assert lane.runs.count("encode") == 2


@pytest.mark.parametrize("allows_drafts", [False, True])
@pytest.mark.parametrize("delivery", Delivery)
def test_a_prompt_may_end_with_an_image(
    model: Model, delivery: Delivery, allows_drafts: bool
) -> None:
    """Its last token runs alone, as in a decode step, but takes a vector."""
    submitted = replace(job(model, 3, picture(model, 1)), delivery=delivery)
    lane = Lane(model, len(submitted.prompt) - 1, allows_drafts=allows_drafts)
    lane.worker.submit(0, submitted)
    while lane.worker.has_work:
        lane.step(lambda: True)
    assert lane.tokens(0) == alone(model, submitted)
    assert [report.num_tokens for report in lane.runs.reports if report.phase == "prefill"] == [11]


def random_job(model: Model, rng: random.Random) -> GenerationJob:
    seed = rng.randrange(3)
    parts: list[Any] = [rng.randrange(1, 40)]
    for _ in range(rng.randrange(3)):
        parts += [picture(model, rng.randrange(3)), rng.randrange(1, 12)]
    made = job(model, *parts, seed=seed)
    return rng.choice(
        [
            made,
            replace(made, delivery=Delivery.WHOLE),
            replace(made, sampling=Sampling(0.8, seed=seed), num_outputs=2),
            replace(made, beams=Beams(3)),
            replace(made, logits_options=LogitsOptions(repetition_penalty=1.3)),
            replace(made, logprob_options=LogprobOptions(prompt_logprobs=0)),
        ]
    )


def test_the_batch_does_not_change_tokens(model: Model) -> None:
    """Of prompts with and without images, which share cached prefixes."""
    rng, ids = random.Random(20_221), itertools.count()
    lane = Lane(model, max_batched_tokens=48)
    for _ in range(25):
        jobs = {next(ids): random_job(model, rng) for _ in range(rng.randrange(2, 6))}
        for id_, submitted in jobs.items():
            for _ in range(rng.randrange(4)):
                lane.step(lambda: rng.random() < 0.7)
            lane.worker.submit(id_, submitted)
        lane.run()
        for id_, submitted in jobs.items():
            assert lane.tokens(id_) == alone(model, submitted)


def test_a_second_turn_about_the_same_image_reuses_it(model: Model) -> None:
    lane, image = Lane(model), picture(model, 1)
    lane.worker.submit(0, job(model, 30, image, 5))
    lane.run()
    second = job(model, 30, image, 40)
    lane.worker.submit(1, second)
    lane.run()
    assert lane.completion(1).num_reused_tokens >= 30 + 9
    assert lane.runs.count("encode") == 1  # its vectors are not computed again
    assert lane.tokens(1) == alone(model, second)


def test_another_image_is_never_reused(model: Model) -> None:
    lane = Lane(model)
    lane.worker.submit(0, job(model, 40, picture(model, 1), 30))
    lane.run()
    other = job(model, 40, picture(model, 2), 30)
    lane.worker.submit(1, other)
    lane.run()
    assert lane.completion(1).num_reused_tokens == 40
    assert lane.runs.count("encode") == 2
    assert lane.tokens(1) == alone(model, other)


def test_lanes_with_another_image_are_no_better(model: Model) -> None:
    def of(seed: int) -> GenerationJob:
        return job(model, picture(model, seed), 64)

    assert of(1).prompt == of(2).prompt
    placement = Placement(2, 1, 0)
    assert placement.place(0, GenerationJob((1,), 1), 1) == 0
    assert placement.place(0, of(1), 1) == 1
    for lane in (0, 1):
        placement.release(lane, 1)
    assert placement.place(0, of(2), 0) == 0
    assert placement.place(0, of(1), 0) == 1


def test_a_text_of_image_tokens_does_not_reuse_an_image(model: Model) -> None:
    lane, image = Lane(model), picture(model, 1)
    lane.worker.submit(0, job(model, 40, image, 30))
    lane.run()
    text = replace(job(model, 40, image, 30), images=())
    lane.worker.submit(1, text)
    lane.run()
    assert lane.completion(1).num_reused_tokens == 40
    assert lane.tokens(1) == alone(model, text)


def test_equal_prompts_that_wait_are_encoded_once(model: Model) -> None:
    lane, submitted = Lane(model), job(model, 30, picture(model, 1), 9)
    for id_ in range(3):
        lane.worker.submit(id_, submitted)
    lane.run()
    assert lane.runs.count("encode") == 1
    assert len({str(lane.tokens(id_)) for id_ in range(3)}) == 1


def test_others_decode_between_the_images(model: Model) -> None:
    """Each step computes the vectors of one image at most."""
    lane = Lane(model)
    lane.worker.submit(0, replace(job(model, 5), max_new_tokens=30))
    lane.step()
    images = [part for seed in range(4) for part in (picture(model, seed), 2)]
    lane.worker.submit(1, job(model, *images))
    phases = []
    for _ in range(4):
        before = len(lane.runs.reports)
        lane.step()
        phases.append([report.phase for report in lane.runs.reports[before:]])
    assert phases == [["encode", "decode"]] * 4
    lane.run()


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_cancelling_loses_nothing_of_others(model: Model, num_steps: int) -> None:
    lane, shared = Lane(model, max_batched_tokens=16), picture(model, 1)
    cancelled = job(model, 40, shared, 5, picture(model, 2), 5)
    other = job(model, 40, shared, 9)
    lane.worker.submit(0, cancelled)
    lane.worker.submit(1, other)
    for _ in range(num_steps):
        lane.step()
    lane.worker.cancel(0)
    lane.run()
    assert lane.completion(0).outcome is Outcome.CANCELLED
    assert lane.tokens(1) == alone(model, other)


@pytest.mark.parametrize("value", [FAILING, POISON])
def test_a_failed_image_ends_its_job_only(model: Model, value: int) -> None:
    lane, image = Lane(model), picture(model, 1)
    bad = job(model, 40, np.full_like(image, value), 4)
    jobs = {0: job(model, 40, image, 4), 1: bad, 2: job(model, 40, image, 7), 3: bad}
    for id_, submitted in jobs.items():
        lane.worker.submit(id_, submitted)
    lane.run()
    for id_, submitted in jobs.items():
        if submitted is bad:
            assert lane.completion(id_).outcome is Outcome.FAILED
        else:
            assert lane.tokens(id_) == alone(model, submitted)
