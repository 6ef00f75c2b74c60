"""Lexical shortlists: a row's output is the same alone and in any batch, with every option."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from client.errors import TriuneError
from client.sync import Client
from client.types import Regex, ShortlistMode, TextResult
from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import Beams, LogitsOptions, LogprobOptions, Sampling
from server.engine.generation_worker import GenerationWorker
from server.engine.lane import never
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import Candidates, Delivery, GenerationJob
from server.engine.requests.update import JobUpdate
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.runtime.contract import Graph
from server.runtime.ort.backend import OrtBackend
from tests import tiny
from tests.server.clients import connected

NUM_SLOTS, NUM_MIXES, LENGTH = 8, 12, 64
TEXTS = [text for text, _ in tiny.held_out_dates(30)]
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"logprob_options": LogprobOptions(top_logprobs=3)},
    {"beams": Beams(3), "num_outputs": 2},
    {"beams": Beams(2), "logits_options": LogitsOptions(no_repeat_ngram_size=2)},
    {"sampling": Sampling(1.5, top_p=0.9, seed=3)},
    {"alternatives": True, "num_outputs": 3},
    {"logprob_options": LogprobOptions(top_logprobs=2, prompt_logprobs=2)},
)


@pytest.fixture(scope="module")
def model(shortlist_bundles: Path) -> Model:
    return load_bundle(shortlist_bundles / "shortlist" / "1", OrtBackend("cpu", 1), LENGTH)


def make_job(
    model: Model, text: str, options: dict[str, Any], prefix: str = "", *, short: bool = True
) -> GenerationJob:
    special = model.manifest.special_tokens
    (source,), (forced,) = (
        model.tokenizer.encode([text]),
        model.tokenizer.encode([prefix], special_tokens=False),
    )
    assert special.decoder_start is not None
    assert model.shortlist is not None
    prompt = (special.decoder_start, *forced)
    find = partial(model.shortlist.candidates, source, [*prompt, *special.eos])
    return GenerationJob(
        prompt,
        12,
        source,
        frozenset(special.eos),
        candidates=Candidates(find) if short else None,
        **options,
    )


def make_worker(model: Model, decode: Graph | None = None) -> GenerationWorker:
    graphs, memory = model.replicas[0].graphs, model.replicas[0].memory
    capacity = Capacity(NUM_SLOTS, LENGTH, LENGTH)
    runner = ModelRunner(
        model.manifest.graphs["decode"],
        decode or graphs["decode"],
        graphs["encode"],
        capacity,
        model.manifest.special_tokens.suppressed,
        memory=memory,
    )
    clock = itertools.count().__next__
    limits = StepLimits(NUM_SLOTS, 64, min_chunk=8)
    return GenerationWorker("short", runner, capacity, limits, lambda: float(clock()), Unobserved())


Output = dict[tuple[int, str], list[Any]]


def output_of(updates: list[JobUpdate], id_: int) -> Output:
    """Tokens, log-probabilities and scores of each output."""
    found: Output = {}
    for update in updates:
        if update.id == id_:
            assert update.completion is None or update.completion.is_success
            values = {
                "tokens": update.tokens,
                "logprobs": update.logprobs,
                "prompt_logprobs": update.prompt.logprobs,
            }
            for name, some in values.items():
                found.setdefault((update.output, name), []).extend(some)
            if update.score is not None:
                found[update.output, "score"] = [update.score]
    return found


def drain(worker: GenerationWorker, may_continue: Callable[[], bool] = never) -> list[JobUpdate]:
    updates: list[JobUpdate] = []
    while worker.has_work:
        updates += worker.step(may_continue)
        worker.check()
    return updates


def run_alone(worker: GenerationWorker, job: GenerationJob) -> Output:
    worker.submit(0, job)
    return output_of(drain(worker), 0)


@pytest.mark.parametrize("without", [0.0, 0.3], ids=["all-have-one", "some-have-none"])
def test_rows_do_not_depend_on_the_batch(model: Model, without: float) -> None:
    """Rows join and leave at random steps. Some have no shortlist, so a run needs all logits.

    Outputs of every second mix are delivered whole, so that steps have several decode runs.
    """
    rng = random.Random(7)

    @cache
    def alone(text: str, option: int, prefix: str, *, short: bool) -> Output:
        job = make_job(model, text, OPTIONS[option], prefix, short=short)
        return run_alone(make_worker(model), job)

    worker, ids = make_worker(model), itertools.count()
    for mix in range(NUM_MIXES):
        delivery = Delivery.WHOLE if mix % 2 else Delivery.EACH
        jobs = {
            next(ids): (
                rng.choice(TEXTS),
                rng.randrange(len(OPTIONS)),
                rng.choice(["", "19", "2"]),
                rng.random() >= without,
            )
            for _ in range(rng.randrange(2, 6))
        }
        updates: list[JobUpdate] = []
        for id_, (text, option, prefix, short) in jobs.items():
            for _ in range(rng.randrange(4)):
                updates += worker.step()
            job = make_job(model, text, OPTIONS[option], prefix, short=short)
            worker.submit(id_, dataclasses.replace(job, delivery=delivery))
        updates += drain(worker, lambda: rng.random() < 0.7)
        for id_, (text, option, prefix, short) in jobs.items():
            assert output_of(updates, id_) == alone(text, option, prefix, short=short)


def test_a_graph_without_candidates_gives_the_same_outputs(
    model: Model, shortlist_bundles: Path
) -> None:
    spec = model.manifest.graphs["decode"]
    path = shortlist_bundles / "shortlist" / "1" / spec.file
    whole = OrtBackend("cpu", 1).load(path, spec.disabled_optimizers)
    for index, options in enumerate(OPTIONS):
        job = make_job(model, TEXTS[index], options, "1")
        assert run_alone(make_worker(model), job) == run_alone(make_worker(model, whole), job)


def test_only_candidates_are_generated(model: Model) -> None:
    num_changed = 0
    for text in TEXTS[:10]:
        short, free = (make_job(model, text, {}, short=short) for short in (True, False))
        tokens, all_tokens = (
            run_alone(make_worker(model), job)[0, "tokens"] for job in (short, free)
        )
        assert short.candidates is not None
        allowed = set(short.candidates.ids.tolist())
        assert {token for token in tokens if token is not None} <= allowed
        num_changed += tokens != all_tokens
    assert num_changed  # the shortlist forbids what the model would have said


def test_a_masked_row_equals_the_row_of_candidates(model: Model) -> None:
    """With log-probabilities over the shortlist: those of its tokens sum to 1."""
    job = make_job(model, TEXTS[0], {"logprob_options": LogprobOptions(top_logprobs=100)})
    worker = make_worker(model)
    worker.submit(0, dataclasses.replace(job, max_new_tokens=1))
    (update,) = [update for update in drain(worker) if update.logprobs]
    top = dict(update.logprobs[0].top)
    possible = {token: logprob for token, logprob in top.items() if logprob > -np.inf}
    assert job.candidates is not None
    assert set(possible) <= set(job.candidates.ids.tolist())
    assert sum(np.exp(list(possible.values()))) == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def client(shortlist_bundles: Path) -> Iterator[Client]:
    with connected(shortlist_bundles, "--threads", "1", "--slots", "8") as client:
        yield client


def texts_of(result: TextResult) -> list[str]:
    return [output.text for output in result.outputs]


def test_requests_choose_the_shortlist(client: Client) -> None:
    texts = TEXTS[:12]
    found = {
        mode: texts_of(client.translate("shortlist", texts, shortlist=mode))
        for mode in (None, ShortlistMode.AUTO, ShortlistMode.ON, ShortlistMode.OFF)
    }
    assert found[None] == found[ShortlistMode.AUTO] == found[ShortlistMode.ON]
    assert found[None] != found[ShortlistMode.OFF]
    assert found[ShortlistMode.OFF] == texts_of(client.translate("dates", texts))


@pytest.mark.parametrize(
    ("model", "options"), [("dates", {}), ("shortlist", {"grammar": Regex("[0-9-]+")})]
)
def test_an_unavailable_shortlist_is_an_error_if_it_is_demanded(
    client: Client, model: str, options: dict[str, Any]
) -> None:
    client.translate(model, TEXTS[:1], shortlist=ShortlistMode.AUTO, **options)
    with pytest.raises(TriuneError) as caught:
        client.translate(model, TEXTS[:1], shortlist=ShortlistMode.ON, **options)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in caught.value.violations] == ["decoding.shortlist"]
