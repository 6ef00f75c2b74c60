"""When tokens reach their reader: each at once, several together, or all at the end."""

from dataclasses import replace
from typing import Any

import pytest

from server.engine.decoding.options import Beams, LogprobOptions, Sampling
from server.engine.job_table import FEW_SEQUENCES
from server.engine.requests.job import JOIN_SECONDS, Delivery, GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import JobUpdate
from tests.server.worker_harness import WorkerHarness, make_harness, make_job

NUM_SLOTS, NUM_TOKENS, STEP_SECONDS = 8, 12, 0.3 * JOIN_SECONDS


def job(delivery: Delivery, first: int = 5, **options: Any) -> GenerationJob:
    return replace(make_job([first], NUM_TOKENS), eos=frozenset(), delivery=delivery, **options)


def run(jobs: list[GenerationJob]) -> tuple[WorkerHarness, list[list[JobUpdate]]]:
    """The harness, and the updates of each job."""
    harness = make_harness(num_slots=NUM_SLOTS)
    for id_, each in enumerate(jobs):
        harness.submit(id_, each)
    while harness.worker.has_work:
        harness.step()
        harness.clock.now += STEP_SECONDS
    return harness, [
        [update for update in harness.updates if update.id == id_] for id_ in range(len(jobs))
    ]


def tokens_of(updates: list[JobUpdate]) -> list[int]:
    return [token for update in updates for token in update.tokens]


def test_a_stream_has_each_token_at_once_while_few_run() -> None:
    _, updates = run([job(Delivery.STREAM, first) for first in range(5, 5 + FEW_SEQUENCES)])
    for own in updates:
        assert [len(update.tokens) for update in own] == [1] * NUM_TOKENS


def test_a_stream_joins_tokens_while_many_run() -> None:
    jobs = [job(Delivery.STREAM, first) for first in range(5, 6 + FEW_SEQUENCES)]
    alone = [run([replace(each, delivery=Delivery.EACH)])[1][0] for each in jobs]
    _, updates = run(jobs)
    for own, expected in zip(updates, alone, strict=True):
        sizes = [len(update.tokens) for update in own]
        assert sizes[:3] == [1, 4, 4], "the first at once, then those of 40 ms"
        assert tokens_of(own) == tokens_of(expected)
        times = [time for update in own for time in update.token_times]
        assert times == pytest.approx([k * STEP_SECONDS for k in range(1, NUM_TOKENS + 1)])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampling": Sampling(1.0, seed=3), "num_outputs": 3},
        {"beams": Beams(3), "num_outputs": 2},
        {"logprob_options": LogprobOptions(top_logprobs=2)},
    ],
    ids=["greedy", "samples", "beams", "log-probabilities"],
)
def test_a_whole_output_is_one_update(options: dict[str, Any]) -> None:
    whole, each = job(Delivery.WHOLE, **options), job(Delivery.EACH, **options)
    (_, (at_end,)), (_, (one_by_one,)) = run([whole]), run([each])
    assert len(at_end) == whole.num_outputs < len(one_by_one)
    for output in range(whole.num_outputs):
        (last,) = [update for update in at_end if update.output == output]
        parts = [update for update in one_by_one if update.output == output]
        assert list(last.tokens) == tokens_of(parts)
        assert list(last.logprobs) == [row for update in parts for row in update.logprobs]
        assert last.score == parts[-1].score
        assert len(last.token_times) == len(last.tokens)
        if output == 0:  # of other hypotheses, the end is known only
            assert list(last.token_times) == [
                time for update in parts for time in update.token_times
            ]


@pytest.mark.parametrize("delivery", [Delivery.WHOLE, Delivery.STREAM])
def test_an_output_that_ends_early_has_all_its_tokens(delivery: Delivery) -> None:
    harness = make_harness(num_slots=NUM_SLOTS)
    for id_ in range(FEW_SEQUENCES + 2):
        harness.submit(id_, job(delivery, 5 + id_))
    for _ in range(4):
        harness.step()
        harness.clock.now += 1e-3
    harness.worker.cancel(0)
    harness.step()
    own = [update for update in harness.updates if update.id == 0]
    assert own[-1].completion is not None
    assert own[-1].completion.outcome == Outcome.CANCELLED
    (_, (expected,)) = run([job(Delivery.EACH)])
    assert tokens_of(own) == tokens_of(expected)[: len(tokens_of(own))]
    assert len(tokens_of(own)) == 3, "the first step admits the prompt"
