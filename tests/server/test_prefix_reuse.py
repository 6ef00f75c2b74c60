"""Reused prefixes: the tokens are those of a full prefill, and only new ones are prefilled."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.options import (
    Beams,
)
from tests.server.fake_backend import reference
from tests.server.generating import bench, job
from tests.server.test_branching import searched


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    plans=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 20),
            st.lists(st.integers(1, 96), max_size=6),
            st.integers(0, 9),
            st.sampled_from([None, Beams(2), Beams(3)]),
        ),
        min_size=2,
        max_size=14,
    ),
    num_slots=st.integers(3, 6),
)
def test_a_reused_prefix_changes_no_token(plans, num_slots) -> None:
    """Prompts that share long prefixes with running, waiting and finished ones."""
    beginnings = [[first * 7 + k % 5 + 1 for k in range(44)] for first in range(3)]
    mixed = bench(num_slots=num_slots, max_batched_tokens=64, is_recurrent=False)
    prompts_ = []
    for id_, (which, cut, rest, steps_before, beams) in enumerate(plans):
        prompts_.append(beginnings[which][: 44 - cut] + rest)
        mixed.submit(id_, replace(job(prompts_[-1], 6), beams=beams))
        for _ in range(steps_before):
            mixed.step()
    mixed.run()
    for id_, (prompt, plan) in enumerate(zip(prompts_, plans, strict=True)):
        beams = plan[-1]
        expected = reference(prompt, 6) if beams is None else searched(prompt, beams, 6)[0].tokens
        assert mixed.tokens_of(id_) == expected


def test_only_tokens_behind_a_cached_prefix_are_prefilled() -> None:
    one = bench(max_batched_tokens=64, is_recurrent=False)
    shared = [k % 9 + 1 for k in range(40)]
    one.submit(1, job([*shared, 50], 3))
    one.run()
    assert one.recorder.num_tokens("prefill") == 41
    one.submit(2, job([*shared, 60, 61, 62], 3))
    one.run()
    assert one.recorder.num_tokens("prefill") == 41 + 3
    assert one.ends_of(2)[0].num_reused_tokens == 40
    assert one.tokens_of(2) == reference([*shared, 60, 61, 62], 3)


def test_recurrent_states_are_not_reused() -> None:
    one = bench(max_batched_tokens=64, is_recurrent=True)
    for id_ in range(2):
        one.submit(id_, job([k % 9 + 1 for k in range(40)], 3))
        one.run()
    assert one.ends_of(1)[0].num_reused_tokens == 0
