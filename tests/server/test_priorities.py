"""Scheduling order: priorities without starvation."""

from dataclasses import replace

from tests.server.worker_harness import make_harness, make_job


def test_serves_jobs_by_priority_then_arrival() -> None:
    harness = make_harness(num_slots=1)
    harness.submit(0, make_job([2], 3))
    harness.step()
    for id_, priority in ((1, 0), (2, 5), (3, -5), (4, 5)):
        harness.submit(id_, replace(make_job([2, id_], 2), priority=priority, eos=frozenset()))
    harness.run()
    order = list(dict.fromkeys(update.id for update in harness.updates))
    assert order == [0, 2, 4, 1, 3]


def test_does_not_starve_low_priority_jobs() -> None:
    """A low-priority job runs although higher-priority jobs keep arriving."""
    harness = make_harness(num_slots=1)
    harness.submit(0, replace(make_job([2], 1), priority=0))
    harness.submit(1, replace(make_job([3], 1), priority=-3))
    for id_ in range(2, 100):
        harness.clock.now += 1.0
        harness.submit(id_, replace(make_job([4], 1), priority=0))
        harness.step()
    assert 1 in harness.outcomes


def test_decoding_does_not_starve_prefill() -> None:
    """A prompt gets ``min_chunk`` tokens even if decoding uses the whole token budget."""
    batched = make_harness(num_slots=6, max_batched_tokens=4)
    for id_ in range(5):
        batched.submit(id_, replace(make_job([5, id_ + 1], 60), eos=frozenset()))
    for _ in range(12):
        batched.step()
    batched.submit(9, make_job([7] * 24, 1))
    before = {id_: len(batched.tokens_of(id_)) for id_ in range(5)}
    steps = 0
    while 9 not in batched.outcomes:
        batched.step()
        steps += 1
    assert steps <= 24 // 4 + 1
    for id_ in range(5):
        assert len(batched.tokens_of(id_)) == before[id_] + steps, "decoding goes on in every step"
