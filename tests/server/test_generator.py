"""The generation worker over a fake runtime: tokens do not depend on the rest of the batch."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.options import Sampling
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from tests.server.fake_backend import reference
from tests.server.generating import MAX_LENGTH, bench, job

prompts = st.lists(st.integers(1, 96), min_size=1, max_size=40)
budgets = st.integers(1, 20)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=st.lists(st.tuples(prompts, budgets, st.integers(0, 6)), min_size=1, max_size=14),
    num_slots=st.integers(1, 6),
    max_batched_tokens=st.integers(1, 64),
)
def test_output_does_not_depend_on_batch_mates(jobs, num_slots, max_batched_tokens) -> None:
    mixed = bench(num_slots=num_slots, max_batched_tokens=max_batched_tokens)
    for id_, (prompt, budget, steps_before) in enumerate(jobs):
        for _ in range(steps_before):
            mixed.step()
        mixed.worker.submit(id_, job(prompt, budget))
    mixed.run()
    for id_, (prompt, budget, _) in enumerate(jobs):
        assert mixed.tokens[id_] == reference(prompt, budget)
        assert len(mixed.outcomes[id_]) == 1


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=st.lists(st.tuples(prompts, budgets, st.integers(0, 3)), min_size=1, max_size=14),
    num_slots=st.integers(1, 6),
)
def test_encoder_decoder_output_does_not_depend_on_batch_mates(jobs, num_slots) -> None:
    mixed = bench(num_slots=num_slots, has_source=True)
    for id_, (source, budget, steps_before) in enumerate(jobs):
        for _ in range(steps_before):
            mixed.step()
        mixed.worker.submit(id_, job([1], budget, tuple(source)))
    mixed.run()
    for id_, (source, budget, _) in enumerate(jobs):
        assert mixed.tokens[id_] == reference([1], budget, source)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=st.lists(st.tuples(prompts, budgets), min_size=2, max_size=12),
    cancels=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 20)), max_size=8),
)
def test_cancelling_at_any_point_ends_one_and_frees_its_slot(jobs, cancels) -> None:
    mixed = bench(num_slots=3)
    for id_, (prompt, budget) in enumerate(jobs):
        mixed.worker.submit(id_, job(prompt, budget))
    cancelled = set()
    for step in range(21):
        for id_ in (id_ for id_, at in cancels if at == step and id_ < len(jobs)):
            mixed.worker.cancel(id_)
            cancelled.add(id_)
        mixed.step()
    mixed.run()
    assert sorted(mixed.outcomes) == list(range(len(jobs)))
    assert all(len(outcomes) == 1 for outcomes in mixed.outcomes.values())
    assert mixed.worker.stats.num_running == 0
    for id_, (prompt, budget) in enumerate(jobs):
        expected = reference(prompt, budget)
        if id_ in cancelled:
            assert expected[: len(mixed.tokens[id_])] == mixed.tokens[id_]
        else:
            assert mixed.tokens[id_] == expected


def test_a_cancelled_sequence_releases_its_slot_in_the_next_step() -> None:
    one = bench()
    one.worker.submit(1, job([5, 6, 7], 20))
    one.step()
    assert one.worker.stats.num_running == 1
    one.worker.cancel(1)
    one.step()
    assert one.worker.stats.num_running == 0
    assert one.outcomes[1] == [Outcome.CANCELLED]


def test_an_expired_request_costs_no_run() -> None:
    one = bench()
    one.clock.now = 10.0
    one.worker.submit(1, GenerationJob((5, 6), 4, deadline=9.0))
    one.step()
    assert one.outcomes[1] == [Outcome.DEADLINE]
    assert one.graph.num_runs == 0


def test_logits_that_are_not_finite_end_one_sequence() -> None:
    mixed = bench(poison=50)
    mixed.worker.submit(1, job([5, 6, 7], 10))
    mixed.worker.submit(2, job([5, 50, 8], 10))
    mixed.worker.submit(3, job([9, 9], 10))
    mixed.run()
    assert mixed.outcomes[2] == [Outcome.FAILED]
    for id_, prompt in ((1, [5, 6, 7]), (3, [9, 9])):
        if 50 not in reference(prompt, 10):
            assert mixed.tokens[id_] == reference(prompt, 10)


def test_requests_after_a_failed_run_are_served() -> None:
    one = bench(fail=50)
    one.worker.submit(1, job([50, 50], 10))
    one.run()
    assert one.outcomes[1] == [Outcome.FAILED]
    one.worker.submit(2, job([5, 6], 5))
    one.run()
    assert one.tokens[2] == reference([5, 6], 5)


def test_a_long_prompt_does_not_stall_a_running_sequence() -> None:
    mixed = bench(max_batched_tokens=8)
    mixed.worker.submit(1, job([3], 20))
    mixed.step()
    mixed.worker.submit(2, job([4] * 40, 2))
    for _ in range(5):
        before = len(mixed.tokens_of(1))
        mixed.step()
        assert len(mixed.tokens_of(1)) == before + 1
    assert mixed.graph.max_tokens_in_run <= 8


def test_a_sequence_ends_when_its_slot_is_full() -> None:
    one = bench()
    one.worker.submit(1, GenerationJob(tuple([3] * 60), 1000))
    one.run()
    assert one.outcomes[1] == [Outcome.LENGTH]
    assert len(one.tokens[1]) == MAX_LENGTH - 60 + 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_seed_gives_the_same_tokens_in_any_batch(seed: int) -> None:
    sampled = Sampling(temperature=1.5, top_k=50, seed=seed)

    def tokens(num_mates: int) -> list[int]:
        mixed = bench()
        mixed.worker.submit(0, GenerationJob((5, 6), 12, sampling=sampled))
        for mate in range(1, num_mates + 1):
            mixed.worker.submit(mate, GenerationJob((mate,), 9, sampling=Sampling(1.0, seed=mate)))
        mixed.run()
        return mixed.tokens[0]

    assert tokens(0) == tokens(3) == tokens(7)
