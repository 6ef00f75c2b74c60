"""Prefix caching: same tokens as a full prefill; only new tokens are prefilled."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.options import (
    Beams,
)
from tests.server.fake_backend import reference
from tests.server.test_forking import reference_beam_search
from tests.server.worker_harness import make_harness, make_job


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 20),
            st.lists(st.integers(1, 96), max_size=6),
            st.integers(0, 9),
            st.sampled_from([None, None, "samples", Beams(2), Beams(3)]),
            st.sampled_from(["", "", "other"]),
            st.sampled_from([False, False, False, True]),
            st.integers(0, 3),
        ),
        min_size=2,
        max_size=14,
    ),
    num_slots=st.integers(3, 6),
    num_prefix_slots=st.integers(0, 3),
    max_batched_tokens=st.integers(8, 128),
    is_recurrent=st.booleans(),
)
def test_prefix_reuse_does_not_change_tokens(
    requests, num_slots, num_prefix_slots, max_batched_tokens, is_recurrent
) -> None:
    """Prompts share prefixes with running, waiting and finished sequences; some are cancelled.

    Some continue an earlier prompt and its output.
    """
    shared_prefixes = [[first * 7 + k % 5 + 1 for k in range(44)] for first in range(3)]
    batched = make_harness(
        num_slots=num_slots,
        num_prefix_slots=num_prefix_slots,
        max_batched_tokens=max_batched_tokens,
        is_recurrent=is_recurrent,
    )
    prompts: list[list[int]] = []
    cancelled = set()
    for id_, request in enumerate(requests):
        family, cut, suffix, steps, kind, scope, is_cancelled, continues = request
        start = shared_prefixes[family][: 44 - cut]
        if 0 < continues <= id_ and len(prompts[-continues]) <= 44:
            start = prompts[-continues] + batched.tokens_of(id_ - continues)
        prompts.append(start + suffix)
        job = replace(make_job(prompts[-1], 6), cache_scope=scope)
        if kind == "samples":
            job = replace(job, num_outputs=2)
        elif kind is not None:
            job = replace(job, beams=kind)
        batched.submit(id_, job)
        for _ in range(steps):
            batched.step()
        if is_cancelled:
            batched.worker.cancel(id_)
            cancelled.add(id_)
    batched.run()
    for id_, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        kind = request[4]
        if isinstance(kind, Beams):
            expected = reference_beam_search(prompt, kind, 6)[0].tokens
        else:
            expected = reference(prompt, 6)
        for output in range(2 if kind == "samples" else 1):
            tokens = batched.tokens_of(id_, output)
            assert tokens == (expected[: len(tokens)] if id_ in cancelled else expected)


def test_prefills_only_tokens_after_the_cached_prefix() -> None:
    harness = make_harness(max_batched_tokens=64, is_recurrent=False)
    shared = [k % 9 + 1 for k in range(40)]
    harness.submit(1, make_job([*shared, 50], 3))
    harness.run()
    assert harness.recorder.num_tokens("prefill") == 41
    harness.submit(2, make_job([*shared, 60, 61, 62], 3))
    harness.run()
    assert harness.recorder.num_tokens("prefill") == 41 + 3
    assert harness.completions_of(2)[0].num_reused_tokens == 40
    assert harness.tokens_of(2) == reference([*shared, 60, 61, 62], 3)


def test_reuses_a_recurrent_state_only_after_all_of_its_tokens() -> None:
    harness = make_harness(max_batched_tokens=64, is_recurrent=True)
    prompt = [k % 9 + 1 for k in range(40)]
    harness.submit(1, make_job(prompt, 3))
    harness.run()
    answer = harness.tokens_of(1)
    harness.submit(2, make_job(prompt, 3))  # the row has tokens of the answer, too
    harness.run()
    assert harness.completions_of(2)[0].num_reused_tokens == 0
    turn = [*prompt, *answer, 60, 61]
    harness.submit(3, make_job(turn, 3))
    harness.run()
    assert harness.completions_of(3)[0].num_reused_tokens == len(prompt) + len(answer) - 1
    assert harness.tokens_of(3) == reference(turn, 3)


def test_prompts_wait_for_no_prefill_of_recurrent_states() -> None:
    harness = make_harness(max_batched_tokens=64, is_recurrent=True)
    prompt = [k % 9 + 1 for k in range(40)]
    for id_ in range(3):
        harness.submit(id_, make_job([*prompt, 50 + id_], 3))
    harness.run()
    assert [harness.completions_of(id_)[0].num_reused_tokens for id_ in range(3)] == [0] * 3
