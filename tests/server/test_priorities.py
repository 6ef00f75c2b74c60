"""The order of service: priorities, and nothing starves."""

from dataclasses import replace

from tests.server.generating import bench, job


def test_jobs_are_served_by_priority_then_arrival() -> None:
    one = bench(num_slots=1)
    one.submit(0, job([2], 3))
    one.step()
    for id_, priority in ((1, 0), (2, 5), (3, -5), (4, 5)):
        one.submit(id_, replace(job([2, id_], 2), priority=priority, eos=frozenset()))
    one.run()
    order = list(dict.fromkeys(update.id for update in one.updates))
    assert order == [0, 2, 4, 1, 3]


def test_low_priority_is_not_starved() -> None:
    """New jobs of a higher priority keep arriving, and the low one is served after its wait."""
    one = bench(num_slots=1)
    one.submit(0, replace(job([2], 1), priority=0))
    one.submit(1, replace(job([3], 1), priority=-3))
    for id_ in range(2, 100):
        one.clock.now += 1.0
        one.submit(id_, replace(job([4], 1), priority=0))
        one.step()
    assert 1 in one.outcomes


def test_prompts_are_prefilled_whatever_decodes() -> None:
    """More sequences decode than the token budget allows: a prompt still gets ``min_chunk``."""
    mixed = bench(num_slots=6, max_batched_tokens=4)
    for id_ in range(5):
        mixed.submit(id_, replace(job([5, id_ + 1], 60), eos=frozenset()))
    for _ in range(12):
        mixed.step()
    mixed.submit(9, job([7] * 24, 1))
    before = {id_: len(mixed.tokens_of(id_)) for id_ in range(5)}
    steps = 0
    while 9 not in mixed.outcomes:
        mixed.step()
        steps += 1
    assert steps <= 24 // 4 + 1
    for id_ in range(5):
        assert len(mixed.tokens_of(id_)) == before[id_] + steps, "decoding goes on in every step"
