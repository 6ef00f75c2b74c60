"""Speculative decoding of real graphs: the same tokens as one run for each."""

import itertools
import random
from functools import partial

import pytest

from server.engine.cache.slot_tensors import Capacity
from server.engine.generation_worker import GenerationWorker
from server.engine.model_runner import ModelRunner
from server.engine.requests.job import Candidates, GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.engine.run_inputs import Chunk, next_chunk
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.models.suppressed_tokens import suppressed_tokens
from server.runtime.ort.backend import OrtBackend
from tests import tiny
from tests.server.test_batch_invariance import run, tokens_by_output
from tests.server.worker_harness import Recorder

CAPACITY = Capacity(2, 96, 96)
NUM_NEW_TOKENS = 60


def make_runner(model: Model) -> ModelRunner:
    replica = model.replicas[0]
    graphs, spec = replica.graphs, model.manifest.graphs["decode"]
    suppressed = suppressed_tokens(model.manifest)
    return ModelRunner(
        *(spec, graphs["decode"], graphs.get("encode"), CAPACITY, suppressed),
        memory=replica.memory,
        model="fake",
    )


def make_job(model: Model, rng: random.Random) -> GenerationJob:
    """A job without an end token, so that the output goes on: soon it repeats itself."""
    start = model.manifest.special_tokens.decoder_start
    first = rng.randrange(20, 190)
    text = ",".join(str(first + k) for k in range(rng.randrange(1, 8)))
    if start is None:
        (ids,) = model.tokenizer.encode([f"{text},"])
        return GenerationJob(ids, NUM_NEW_TOKENS)
    (ids,) = model.tokenizer.encode([rng.choice(tiny.held_out_dates(40))[0]])
    candidates = None
    if model.shortlist is not None:
        candidates = Candidates(partial(model.shortlist.candidates, ids, [start]))
    return GenerationJob((start,), NUM_NEW_TOKENS, source=ids, candidates=candidates)


def single_runs(runner: ModelRunner, id_: int, job: GenerationJob) -> list[int | None]:
    """Decodes with one run of the decoder for each token."""
    sequence = DecodingSequence.first_of(id_, job)
    if job.source:
        runner.encode([sequence], [0])
    num_before = len(job.prompt) - 1
    if num_before:
        runner.decode([Chunk(sequence, 0, num_before)], 0)
        sequence.num_cached_tokens = num_before
    runs = runner.decode_greedily([next_chunk(sequence, 1)], 0)
    return [token for (token,) in itertools.islice(runs, NUM_NEW_TOKENS)]


@pytest.mark.parametrize(
    ("bundles", "name"),
    [
        ("tiny_bundles", "tiny-decoder"),
        ("tiny_bundles", "dates"),
        ("compact_bundles", "decoder-int4"),
        ("compact_bundles", "decoder-cache8"),
        ("compact_bundles", "dates-cache8"),
        ("shortlist_bundles", "shortlist"),
    ],
)
def test_tokens_are_those_of_single_runs(
    request: pytest.FixtureRequest, bundles: str, name: str
) -> None:
    folder = request.getfixturevalue(bundles)
    model = load_bundle(folder / name / "1", OrtBackend("cpu", 1), CAPACITY.max_length)
    rng, runner, recorder = random.Random(0), make_runner(model), Recorder()
    clock = itertools.count().__next__
    limits = StepLimits(CAPACITY.num_slots, 64)
    worker = GenerationWorker(
        *("fake", make_runner(model), CAPACITY, limits, lambda: float(clock()), recorder)
    )
    for id_ in range(12):
        job = make_job(model, rng)
        worker.submit(id_, job)
        assert tokens_by_output(run(worker), id_) == {0: single_runs(runner, id_, job)}
    assert sum(report.num_accepted_tokens for report in recorder.runs) > 20
