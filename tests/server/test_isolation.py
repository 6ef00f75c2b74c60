"""A failing request ends alone: other requests of its batch are served as without it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.constraint import Constraint, ConstraintError, Floats
from server.engine.decoding.options import Beams, Sampling
from server.engine.encoder_worker import BatchLimits
from server.engine.failures import run_with_isolation
from server.engine.requests.job import EncodingJob
from server.engine.requests.lifecycle import Outcome
from tests.server.company import FAIL, FAULTS, NUM_SLOTS, POISON, alone, companies, run_together
from tests.server.fake_backend import host_view, reference
from tests.server.generating import bench, job
from tests.server.halves import Halves, encoder_of
from tests.server.test_branching import same


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=companies(),
    max_batched_tokens=st.integers(1, 64),
    is_recurrent=st.booleans(),
    has_source=st.booleans(),
)
def test_a_failing_request_changes_no_other(
    mixed_jobs, max_batched_tokens, is_recurrent, has_source
) -> None:
    """Samples, beams, greedy jobs; some have a token that makes the run raise, or return NaN."""
    options: dict[str, Any] = {"is_recurrent": is_recurrent, "has_source": has_source}
    mixed = bench(num_slots=NUM_SLOTS, max_batched_tokens=max_batched_tokens, **options, **FAULTS)
    wanted = run_together(mixed, mixed_jobs, (3, 4) if has_source else ())
    assert mixed.worker.stats.num_running == 0
    for tensor in mixed.cache.rows(0, NUM_SLOTS).values():
        assert np.isfinite(host_view(tensor)).all(), (
            "the slot of a failed sequence is zeroed before it is used again"
        )
    for id_, one in enumerate(wanted):
        same(mixed, id_, alone(one, **options))
        if set(one.prompt) & {POISON, FAIL}:
            assert set(mixed.outcomes[id_]) == {Outcome.FAILED}


@dataclass
class Faulty:
    """A constraint that raises at its ``n``-th token."""

    num_tokens: int
    error: type[Exception]

    def mask(self, logits: Floats) -> None:
        pass

    def advance(self, token: int) -> None:
        del token
        self.num_tokens -= 1
        if self.num_tokens == 0:
            raise self.error("planted")

    def fork(self) -> Constraint:
        return Faulty(self.num_tokens, self.error)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sampling": Sampling(1.0, seed=1), "num_outputs": 3},
        {"alternatives": True, "num_outputs": 3},
        {"beams": Beams(3), "num_outputs": 2},
    ],
    ids=["greedy", "samples", "alternatives", "beams"],
)
@pytest.mark.parametrize("num_tokens", [1, 2, 4])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ConstraintError, Outcome.UNSATISFIABLE), (RuntimeError, Outcome.FAILED)],
)
def test_an_error_while_a_token_is_chosen_ends_one_job(change, num_tokens, error, outcome) -> None:
    mixed = bench()
    bad = replace(job([5, 6], 12), eos=frozenset(), constraint=Faulty(num_tokens, error), **change)
    mixed.submit(1, job([7, 8], 12))
    mixed.submit(2, bad)
    mixed.submit(3, job([9], 12))
    mixed.run()
    assert outcome in mixed.outcomes[2]
    assert [update.is_last for update in mixed.updates if update.id == 2].count(True) == 1
    assert mixed.worker.stats.num_running == 0
    assert mixed.tokens_of(1) == reference([7, 8], 12)
    assert mixed.tokens_of(3) == reference([9], 12)


def test_items_run_alone_only_after_a_failure() -> None:
    runs: list[list[int]] = []

    def run(items) -> int:
        runs.append(list(items))
        if 3 in items:
            raise ValueError
        return sum(items)

    assert [batch.result for batch in run_with_isolation([1, 2], run, "test")] == [3]
    assert [
        (batch.items, batch.result) for batch in run_with_isolation([1, 3, 2], run, "test")
    ] == [
        ([1], 1),
        ([3], None),
        ([2], 2),
    ]
    assert runs == [[1, 2], [1, 3, 2], [1], [3], [2]]


def test_only_the_failing_texts_of_a_batch_fail() -> None:
    graph = Halves()
    encoder = encoder_of(graph, BatchLimits(100))
    texts = [(2, 4), (2, FAIL), (2, 6), (2, POISON), (2, 8)]
    for id_, text in enumerate(texts):
        encoder.submit(id_, EncodingJob(text, wants_tokens=True))
    updates = {update.id: update for update in encoder.step()}
    assert graph.num_runs == 1 + len(texts)
    for id_, text in enumerate(texts):
        end, vector = updates[id_].completion, updates[id_].vector
        assert end is not None
        if set(text) & {FAIL, POISON}:
            assert end.outcome == Outcome.FAILED
        else:
            assert vector is not None
            assert end.outcome == Outcome.DONE
            assert vector[0] == sum(text) / 2
    assert not encoder.has_work
