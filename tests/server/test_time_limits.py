"""Deadlines and time limits in the queue, during prefill and during decode."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.bounds import check_fields
from server.engine.decoding.options import Beams, Sampling
from server.engine.requests.lifecycle import Event, Outcome
from server.engine.requests.sequence import DecodingSequence
from server.errors import InvalidArgumentError
from server.service.generation_options import StoppingOptions
from server.service.time_limit import finish_by
from tests.server.fake_backend import reference
from tests.server.test_forking import NUM_SLOTS, generation_jobs, run_alone
from tests.server.worker_harness import make_harness, make_job


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=st.lists(
        st.tuples(generation_jobs(), st.none() | st.integers(0, 14), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    has_source=st.booleans(),
)
def test_deadline_or_time_limit_at_any_step_frees_slots(mixed_jobs, has_source) -> None:
    """Each step takes 1 s. Jobs without a limit give the same output as alone."""
    batched = make_harness(num_slots=NUM_SLOTS, has_source=has_source)
    for id_, (job, limit, is_partial) in enumerate(mixed_jobs):
        times = {"finish_by" if is_partial else "deadline": None if limit is None else float(limit)}
        batched.submit(id_, replace(job, source=(7, 8) if has_source else (), **times))
    while batched.worker.has_work:
        batched.step()
        batched.clock.now += 1.0
    assert batched.worker.stats.num_running == batched.worker.stats.num_waiting == 0
    for id_, (job, limit, is_partial) in enumerate(mixed_jobs):
        assert [updates.is_last for updates in batched.updates if updates.id == id_].count(
            True
        ) == 1
        expected_job = replace(job, source=(7, 8) if has_source else ())
        alone = run_alone(expected_job, has_source=has_source)
        outcomes = {end.outcome for end in batched.completions_of(id_).values()}
        cut = Outcome.TIME_LIMIT if is_partial else Outcome.DEADLINE
        if limit is not None and is_partial and job.beams is not None:
            continue  # the best hypothesis so far need not be the final best
        if limit is None or cut not in outcomes:
            assert batched.tokens_of(id_) == alone.tokens_of(0)
        elif job.beams is None:
            tokens = batched.tokens_of(id_)
            assert tokens == alone.tokens_of(0)[: len(tokens)]


def test_time_limit_returns_partial_output() -> None:
    harness = make_harness()
    harness.submit(1, replace(make_job([5, 6, 7], 20), eos=frozenset(), finish_by=3.0))
    while harness.worker.has_work:
        harness.step()
        harness.clock.now += 1.0
    assert harness.outcomes[1] == [Outcome.TIME_LIMIT]
    assert harness.tokens_of(1) == reference([5, 6, 7], 3, eos=-1)


def test_timed_out_beam_search_returns_its_best_so_far() -> None:
    job = replace(make_job([5, 6], 20), eos=frozenset(), beams=Beams(3), num_outputs=2)
    harness = make_harness()
    harness.submit(1, replace(job, finish_by=4.0))
    while harness.worker.has_work:
        harness.step()
        harness.clock.now += 1.0
    shorter = run_alone(replace(job, max_new_tokens=4))
    for output in range(2):
        assert harness.completions_of(1)[output].outcome == Outcome.TIME_LIMIT
        assert harness.tokens_of(1, output) == shorter.tokens_of(0, output)


@pytest.mark.parametrize("limit", ["deadline", "finish_by"])
@pytest.mark.parametrize(
    "change", [{}, {"beams": Beams(2)}, {"sampling": Sampling(1.0), "num_outputs": 2}]
)
def test_jobs_that_expire_in_the_queue_are_never_run(limit, change) -> None:
    harness = make_harness()
    harness.clock.now = 10.0
    options: dict[str, Any] = {limit: 9.0, **change}
    harness.submit(1, replace(make_job([5, 6], 4), **options))
    harness.run()
    assert harness.graph.num_runs == 0
    outcome = Outcome.DEADLINE if limit == "deadline" else Outcome.TIME_LIMIT
    assert set(harness.outcomes[1]) == {outcome}
    assert harness.tokens_of(1) == []


times = st.none() | st.floats(0, 10)


@given(is_cancelled=st.booleans(), deadline=times, finish_by=times)
def test_cancelled_and_late_sequences_end_early(is_cancelled, deadline, finish_by) -> None:
    job = replace(make_job([5, 6], 4), deadline=deadline, finish_by=finish_by)
    sequence = DecodingSequence.first_of(0, job)
    expected = {
        Outcome.TIME_LIMIT: finish_by is not None and finish_by <= 5.0,
        Outcome.DEADLINE: deadline is not None and deadline <= 5.0,
        None: True,
    }
    if is_cancelled:
        sequence.on(Event.CANCEL)
        expected = {Outcome.CANCELLED: True, **expected}
    first = next(outcome for outcome, is_due in expected.items() if is_due)
    assert sequence.early_outcome(5.0) is first


def test_expired_prompt_stops_prefilling() -> None:
    harness = make_harness(max_batched_tokens=4)
    harness.submit(1, replace(make_job([5] * 40, 4), deadline=2.5))
    while harness.worker.has_work:
        harness.step()
        harness.clock.now += 1.0
    assert harness.outcomes[1] == [Outcome.DEADLINE]
    assert harness.graph.num_runs == 3, "one chunk per second until the deadline"


def test_computes_finish_by_from_deadline_and_time_limit() -> None:
    assert finish_by(StoppingOptions(), 100.0, 110.0) is None
    assert finish_by(StoppingOptions(max_seconds=3.0), 100.0, None) == 103.0
    before = StoppingOptions(stop_before_deadline=True)
    assert finish_by(before, 100.0, 101.0) == pytest.approx(100.9)
    assert finish_by(before, 100.0, 200.0) == pytest.approx(199.5)
    assert finish_by(before, 100.0, 100.05) == pytest.approx(100.03)
    both = StoppingOptions(stop_before_deadline=True, max_seconds=0.5)
    assert finish_by(both, 100.0, 101.0) == pytest.approx(100.5)
    with pytest.raises(InvalidArgumentError, match="the call has no deadline"):
        finish_by(before, 100.0, None)
    for bad in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(InvalidArgumentError) as caught:
            check_fields(StoppingOptions(max_seconds=bad))
        assert caught.value.field == "max_seconds"
