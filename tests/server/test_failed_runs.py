"""A failing request does not affect the other requests of its batch."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.constraint import Constraint, ConstraintError, Floats
from server.engine.decoding.options import Beams, Sampling
from server.engine.encoder_batch import BatchLimits
from server.engine.encoder_runner import TOKEN_VECTORS
from server.engine.failures import RUN_FAILED, run_with_isolation
from server.engine.requests.job import EncodingJob
from server.engine.requests.lifecycle import Outcome
from tests.server.fake_backend import host_view, reference
from tests.server.fake_encoder import FakeEncoder, make_encoder_worker
from tests.server.mixed_batches import (
    FAIL,
    FAULTS,
    NUM_SLOTS,
    POISON,
    mixed_batches,
    run_alone_with_faults,
    run_batched,
)
from tests.server.test_forking import assert_same_output
from tests.server.worker_harness import make_harness, make_job


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    arrivals=mixed_batches(),
    max_batched_tokens=st.integers(1, 64),
    is_recurrent=st.booleans(),
    has_source=st.booleans(),
)
def test_failing_requests_do_not_change_other_outputs(
    arrivals, max_batched_tokens, is_recurrent, has_source
) -> None:
    """Batches of all decoding methods; some prompts make the run raise or return NaN."""
    options: dict[str, Any] = {"is_recurrent": is_recurrent, "has_source": has_source}
    batched = make_harness(
        num_slots=NUM_SLOTS, max_batched_tokens=max_batched_tokens, **options, **FAULTS
    )
    jobs = run_batched(batched, arrivals, (3, 4) if has_source else ())
    assert batched.worker.stats.num_running == 0
    for tensor in batched.cache.rows(0, NUM_SLOTS).values():
        assert np.isfinite(host_view(tensor)).all(), (
            "the slot of a failed sequence is zeroed before it is used again"
        )
    for id_, job in enumerate(jobs):
        assert_same_output(batched, id_, run_alone_with_faults(job, **options))
        if set(job.prompt) & {POISON, FAIL}:
            assert set(batched.outcomes[id_]) == {Outcome.FAILED}


@dataclass
class FailingConstraint:
    """A constraint that raises at token number ``num_tokens``."""

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
        return FailingConstraint(self.num_tokens, self.error)


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
def test_token_selection_error_fails_only_its_job(change, num_tokens, error, outcome) -> None:
    batched = make_harness()
    failing = replace(
        make_job([5, 6], 12),
        eos=frozenset(),
        constraint=FailingConstraint(num_tokens, error),
        **change,
    )
    batched.submit(1, make_job([7, 8], 12))
    batched.submit(2, failing)
    batched.submit(3, make_job([9], 12))
    batched.run()
    assert outcome in batched.outcomes[2]
    assert [update.is_last for update in batched.updates if update.id == 2].count(True) == 1
    assert batched.worker.stats.num_running == 0
    assert batched.tokens_of(1) == reference([7, 8], 12)
    assert batched.tokens_of(3) == reference([9], 12)


def test_items_run_alone_only_after_a_batch_fails() -> None:
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
        ([3], RUN_FAILED),
        ([2], 2),
    ]
    assert runs == [[1, 2], [1, 3, 2], [1], [3], [2]]


def test_encoder_batch_fails_only_the_failing_texts() -> None:
    graph = FakeEncoder()
    encoder = make_encoder_worker(graph, BatchLimits(100))
    texts = [(2, 4), (2, FAIL), (2, 6), (2, POISON), (2, 8)]
    for id_, text in enumerate(texts):
        encoder.submit(id_, EncodingJob(text, token_outputs=(TOKEN_VECTORS,)))
    updates = {update.id: update for update in encoder.step()}
    assert graph.num_runs == 1 + len(texts)
    for id_, text in enumerate(texts):
        end, encoded = updates[id_].completion, updates[id_].encoded
        assert end is not None
        if set(text) & {FAIL, POISON}:
            assert end.outcome == Outcome.FAILED
        else:
            assert encoded is not None
            assert end.outcome == Outcome.DONE
            assert encoded.vector[0] == sum(text) / 2
    assert not encoder.has_work
