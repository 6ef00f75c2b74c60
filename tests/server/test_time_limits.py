"""Time that is over: in the queue, while a prompt is read, while tokens come."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.options import Beams, Sampling
from server.engine.requests.lifecycle import Outcome
from server.errors import InvalidArgumentError
from server.service.generation_options import StoppingOptions, check_stopping
from server.service.time_limit import finish_by
from tests.server.fake_backend import reference
from tests.server.generating import bench, job
from tests.server.test_branching import NUM_SLOTS, jobs, run_alone


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=st.lists(
        st.tuples(jobs(), st.none() | st.integers(0, 14), st.booleans()), min_size=1, max_size=8
    ),
    has_source=st.booleans(),
)
def test_whatever_ends_at_any_time_frees_its_slots(mixed_jobs, has_source) -> None:
    """One second a step. Some have a deadline, some a time limit; the rest is as if alone."""
    mixed = bench(num_slots=NUM_SLOTS, has_source=has_source)
    for id_, (one, at, is_partial) in enumerate(mixed_jobs):
        times = {"finish_by" if is_partial else "deadline": None if at is None else float(at)}
        mixed.submit(id_, replace(one, source=(7, 8) if has_source else (), **times))
    while mixed.worker.has_work:
        mixed.step()
        mixed.clock.now += 1.0
    assert mixed.worker.stats.num_running == mixed.worker.stats.num_waiting == 0
    for id_, (one, at, is_partial) in enumerate(mixed_jobs):
        assert [updates.is_last for updates in mixed.updates if updates.id == id_].count(True) == 1
        plain = replace(one, source=(7, 8) if has_source else ())
        alone = run_alone(plain, has_source=has_source)
        outcomes = {end.outcome for end in mixed.ends_of(id_).values()}
        cut = Outcome.TIME_LIMIT if is_partial else Outcome.DEADLINE
        if at is not None and is_partial and one.beams is not None:
            continue  # what is best so far may have ended by itself, and not be the best of all
        if at is None or cut not in outcomes:
            assert mixed.tokens_of(id_) == alone.tokens_of(0)
        elif one.beams is None:
            told = mixed.tokens_of(id_)
            assert told == alone.tokens_of(0)[: len(told)]


def test_a_time_limit_ends_a_text_with_what_there_is() -> None:
    one = bench()
    one.submit(1, replace(job([5, 6, 7], 20), eos=frozenset(), finish_by=3.0))
    while one.worker.has_work:
        one.step()
        one.clock.now += 1.0
    assert one.outcomes[1] == [Outcome.TIME_LIMIT]
    assert one.tokens_of(1) == reference([5, 6, 7], 3, eos=-1)


def test_a_search_that_runs_out_of_time_tells_its_best_so_far() -> None:
    wanted = replace(job([5, 6], 20), eos=frozenset(), beams=Beams(3), num_outputs=2)
    one = bench()
    one.submit(1, replace(wanted, finish_by=4.0))
    while one.worker.has_work:
        one.step()
        one.clock.now += 1.0
    shorter = run_alone(replace(wanted, max_new_tokens=4))
    for output in range(2):
        assert one.ends_of(1)[output].outcome == Outcome.TIME_LIMIT
        assert one.tokens_of(1, output) == shorter.tokens_of(0, output)


@pytest.mark.parametrize("limit", ["deadline", "finish_by"])
@pytest.mark.parametrize(
    "change", [{}, {"beams": Beams(2)}, {"sampling": Sampling(1.0), "num_outputs": 2}]
)
def test_what_expires_in_the_queue_costs_no_run(limit, change) -> None:
    one = bench()
    one.clock.now = 10.0
    options: dict[str, Any] = {limit: 9.0, **change}
    one.submit(1, replace(job([5, 6], 4), **options))
    one.run()
    assert one.graph.num_runs == 0
    outcome = Outcome.DEADLINE if limit == "deadline" else Outcome.TIME_LIMIT
    assert set(one.outcomes[1]) == {outcome}
    assert one.tokens_of(1) == []


def test_an_expired_prompt_is_not_read_on() -> None:
    one = bench(max_batched_tokens=4)
    one.submit(1, replace(job([5] * 40, 4), deadline=2.5))
    while one.worker.has_work:
        one.step()
        one.clock.now += 1.0
    assert one.outcomes[1] == [Outcome.DEADLINE]
    assert one.graph.num_runs == 3, "one chunk a second, until the deadline"


def test_when_a_text_has_to_be_finished() -> None:
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
            check_stopping(StoppingOptions(max_seconds=bad), 0)
        assert caught.value.field == "max_seconds"
