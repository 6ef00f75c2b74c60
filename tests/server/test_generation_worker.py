"""The generation worker on the fake runtime: batch invariance, cancellation, failures."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.options import Sampling
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.runtime.host_memory import HostMemory
from server.runtime.memory import Move
from tests.server.fake_backend import reference
from tests.server.worker_harness import MAX_LENGTH, MEMORIES, make_harness, make_job

prompts = st.lists(st.integers(1, 96), min_size=1, max_size=40)
budgets = st.integers(1, 20)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=st.lists(st.tuples(prompts, budgets, st.integers(0, 6)), min_size=1, max_size=14),
    num_slots=st.integers(1, 6),
    max_batched_tokens=st.integers(1, 64),
)
def test_output_does_not_depend_on_the_batch(jobs, num_slots, max_batched_tokens) -> None:
    batched = make_harness(num_slots=num_slots, max_batched_tokens=max_batched_tokens)
    for id_, (prompt, budget, steps_before) in enumerate(jobs):
        for _ in range(steps_before):
            batched.step()
        batched.worker.submit(id_, make_job(prompt, budget))
    batched.run()
    for id_, (prompt, budget, _) in enumerate(jobs):
        assert batched.tokens[id_] == reference(prompt, budget)
        assert len(batched.outcomes[id_]) == 1


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=st.lists(st.tuples(prompts, budgets, st.integers(0, 3)), min_size=1, max_size=14),
    num_slots=st.integers(1, 6),
)
def test_encoder_decoder_output_does_not_depend_on_the_batch(jobs, num_slots) -> None:
    batched = make_harness(num_slots=num_slots, has_source=True)
    for id_, (source, budget, steps_before) in enumerate(jobs):
        for _ in range(steps_before):
            batched.step()
        batched.worker.submit(id_, make_job([1], budget, tuple(source)))
    batched.run()
    for id_, (source, budget, _) in enumerate(jobs):
        assert batched.tokens[id_] == reference([1], budget, source)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=st.lists(st.tuples(prompts, budgets), min_size=2, max_size=12),
    cancels=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 20)), max_size=8),
)
def test_cancel_at_any_step_ends_one_sequence_and_frees_its_slot(jobs, cancels) -> None:
    batched = make_harness(num_slots=3)
    for id_, (prompt, budget) in enumerate(jobs):
        batched.worker.submit(id_, make_job(prompt, budget))
    cancelled = set()
    for step in range(21):
        for id_ in (id_ for id_, at in cancels if at == step and id_ < len(jobs)):
            batched.worker.cancel(id_)
            cancelled.add(id_)
        batched.step()
    batched.run()
    assert sorted(batched.outcomes) == list(range(len(jobs)))
    assert all(len(outcomes) == 1 for outcomes in batched.outcomes.values())
    assert batched.worker.stats.num_running == 0
    for id_, (prompt, budget) in enumerate(jobs):
        expected = reference(prompt, budget)
        if id_ in cancelled:
            assert expected[: len(batched.tokens[id_])] == batched.tokens[id_]
        else:
            assert batched.tokens[id_] == expected


def test_cancelled_sequence_releases_its_slot_in_the_next_step() -> None:
    harness = make_harness()
    harness.worker.submit(1, make_job([5, 6, 7], 20))
    harness.step()
    assert harness.worker.stats.num_running == 1
    harness.worker.cancel(1)
    harness.step()
    assert harness.worker.stats.num_running == 0
    assert harness.outcomes[1] == [Outcome.CANCELLED]


def test_expired_requests_are_never_run() -> None:
    harness = make_harness()
    harness.clock.now = 10.0
    harness.worker.submit(1, GenerationJob((5, 6), 4, deadline=9.0))
    harness.step()
    assert harness.outcomes[1] == [Outcome.DEADLINE]
    assert harness.graph.num_runs == 0


def test_non_finite_logits_fail_only_their_sequence() -> None:
    batched = make_harness(poison=50)
    batched.worker.submit(1, make_job([5, 6, 7], 10))
    batched.worker.submit(2, make_job([5, 50, 8], 10))
    batched.worker.submit(3, make_job([9, 9], 10))
    batched.run()
    assert batched.outcomes[2] == [Outcome.FAILED]
    for id_, prompt in ((1, [5, 6, 7]), (3, [9, 9])):
        if 50 not in reference(prompt, 10):
            assert batched.tokens[id_] == reference(prompt, 10)


def test_serves_requests_after_a_failed_run() -> None:
    harness = make_harness(fail=50)
    harness.worker.submit(1, make_job([50, 50], 10))
    harness.run()
    assert harness.outcomes[1] == [Outcome.FAILED]
    harness.worker.submit(2, make_job([5, 6], 5))
    harness.run()
    assert harness.tokens[2] == reference([5, 6], 5)


def test_chunked_prefill_does_not_stall_decoding() -> None:
    batched = make_harness(max_batched_tokens=8)
    batched.worker.submit(1, make_job([3], 20))
    batched.step()
    batched.worker.submit(2, make_job([4] * 40, 2))
    for _ in range(5):
        before = len(batched.tokens_of(1))
        batched.step()
        assert len(batched.tokens_of(1)) == before + 1
    assert batched.graph.max_tokens_in_run <= 8


def test_sequence_ends_when_its_slot_is_full() -> None:
    harness = make_harness()
    harness.worker.submit(1, GenerationJob(tuple([3] * 60), 1000))
    harness.run()
    assert harness.outcomes[1] == [Outcome.LENGTH]
    assert len(harness.tokens[1]) == MAX_LENGTH - 60 + 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_seeded_sampling_does_not_depend_on_the_batch(seed: int) -> None:
    sampled = Sampling(temperature=1.5, top_k=50, seed=seed)

    def tokens(num_mates: int) -> list[int]:
        batched = make_harness()
        batched.worker.submit(0, GenerationJob((5, 6), 12, sampling=sampled))
        for mate in range(1, num_mates + 1):
            batched.worker.submit(
                mate, GenerationJob((mate,), 9, sampling=Sampling(1.0, seed=mate))
            )
        batched.run()
        return batched.tokens[0]

    assert tokens(0) == tokens(3) == tokens(7)


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        ([6, 6, 6, 6], []),
        ([6, 6, 3, 3], []),
        ([3, 6, 6, 6], [(3, 0)]),
        ([3, 6, 6, 3], [(2, 0)]),
        ([3, 6, 3, 6], [(3, 0)]),
        ([3, 3, 6, 6], [(3, 0), (2, 1)]),
    ],
)
def test_no_sequence_moves_to_end_in_another_slot(
    monkeypatch: pytest.MonkeyPatch, budgets: list[int], expected: list[tuple[int, int]]
) -> None:
    """Sequences that end in one step leave from the last slot on."""
    moves: list[Move] = []

    class Recording(HostMemory):
        def move(self, names: Sequence[str], batch: Sequence[Move]) -> None:
            moves.extend(batch)
            super().move(names, batch)

    monkeypatch.setitem(MEMORIES, "recording", Recording)
    harness = make_harness(is_recurrent=False, memory="recording")
    for id_, budget in enumerate(budgets):
        harness.submit(id_, make_job([5 + id_, 7], budget))
    harness.run()
    assert harness.tokens == {
        id_: reference([5 + id_, 7], budget) for id_, budget in enumerate(budgets)
    }
    assert all(outcomes == [Outcome.LENGTH] for outcomes in harness.outcomes.values())
    assert [(move.source, move.target) for move in moves] == expected
