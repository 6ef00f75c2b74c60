"""Samples, alternatives, beams and reused prefixes: over a fake runtime, in any company."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.beam import BeamSearch
from server.engine.decoding.options import (
    Beams,
    EarlyStopping,
    LogitsOptions,
    LogprobOptions,
    Sampling,
)
from server.engine.decoding.sampling import log_probabilities, log_sum_exp, top_tokens
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import GenerationJob
from tests.server.fake_backend import EOS, next_logits, reference
from tests.server.generating import MAX_LENGTH, Bench, bench, job

NUM_SLOTS = 6


@dataclass(frozen=True)
class Found:
    tokens: list[int]
    score: float


def searched(
    prompt: Sequence[int], beams: Beams, max_new_tokens: int, source: Sequence[int] = ()
) -> list[Found]:
    """The same search with every hypothesis computed from scratch: no rows, no cache."""
    search = BeamSearch(beams, frozenset({EOS}), max_new_tokens)
    while not search.is_over:
        table = [next_logits((*prompt, *live.tokens), source) for live in search.live]
        search.advance([top_tokens(row, search.num_candidates, log_sum_exp(row)) for row in table])
    return [Found(list(best.tokens), best.score) for best in search.best(beams.size)]


prompts = st.lists(st.integers(1, 96), min_size=1, max_size=30)
beam_options = st.builds(
    Beams,
    size=st.integers(2, 5),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early_stopping=st.sampled_from(EarlyStopping),
)


@st.composite
def jobs(draw: st.DrawFn) -> GenerationJob:
    """Greedy, sampled, split, alternative and beam-searched ones."""
    plain = job(draw(prompts), draw(st.integers(1, 12)))
    kind = draw(st.sampled_from(["greedy", "samples", "alternatives", "beams"]))
    if kind == "beams":
        beams = draw(beam_options)
        return replace(plain, beams=beams, num_outputs=draw(st.integers(1, beams.size)))
    if kind == "samples":
        sampling = Sampling(1.2, top_k=20, seed=draw(st.integers(0, 99)))
        return replace(plain, sampling=sampling, num_outputs=draw(st.integers(1, 4)))
    if kind == "alternatives":
        return replace(plain, alternatives=True, num_outputs=draw(st.integers(2, 4)))
    return plain


def run_alone(wanted: GenerationJob, **options: Any) -> Bench:
    alone = bench(num_slots=NUM_SLOTS, **options)
    alone.submit(0, wanted)
    alone.run()
    return alone


def same(mixed: Bench, id_: int, alone: Bench) -> None:
    ends = mixed.ends_of(id_)
    assert sorted(ends) == sorted(alone.ends_of(0))
    for output, end in ends.items():
        assert mixed.tokens_of(id_, output) == alone.tokens_of(0, output)
        assert end.outcome == alone.ends_of(0)[output].outcome
        assert mixed.last_of(id_, output).score == alone.last_of(0, output).score


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=st.lists(st.tuples(jobs(), st.integers(0, 4)), min_size=1, max_size=9),
    max_batched_tokens=st.integers(1, 64),
    is_recurrent=st.booleans(),
)
def test_output_does_not_depend_on_company(mixed_jobs, max_batched_tokens, is_recurrent) -> None:
    mixed = bench(
        num_slots=NUM_SLOTS, max_batched_tokens=max_batched_tokens, is_recurrent=is_recurrent
    )
    for id_, (wanted, steps_before) in enumerate(mixed_jobs):
        for _ in range(steps_before):
            mixed.step()
        mixed.submit(id_, wanted)
    mixed.run()
    assert mixed.generator.load.num_running == 0
    for id_, (wanted, _) in enumerate(mixed_jobs):
        same(mixed, id_, run_alone(wanted, is_recurrent=is_recurrent))


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=st.lists(jobs(), min_size=2, max_size=9),
    cancels=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 15), st.none() | st.integers(0, 3)),
        max_size=8,
    ),
    is_recurrent=st.booleans(),
)
def test_cancelling_at_any_point_harms_no_other(mixed_jobs, cancels, is_recurrent) -> None:
    mixed = bench(num_slots=NUM_SLOTS, is_recurrent=is_recurrent)
    for id_, wanted in enumerate(mixed_jobs):
        mixed.submit(id_, wanted)
    cancelled = set()
    for step in range(16):
        for id_, _, output in (cancel for cancel in cancels if cancel[1] == step):
            mixed.generator.cancel(id_, output)
            cancelled.add(id_)
        mixed.step()
    mixed.run()
    assert mixed.generator.load.num_running == 0
    for id_, wanted in enumerate(mixed_jobs):
        lasts = [progress for progress in mixed.updates if progress.id == id_ and progress.is_last]
        assert len(lasts) == 1
        if id_ not in cancelled:
            same(mixed, id_, run_alone(wanted, is_recurrent=is_recurrent))


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(prompt=prompts, beams=beam_options, max_new_tokens=st.integers(1, 15))
def test_a_search_over_rows_is_that_from_scratch(prompt, beams, max_new_tokens) -> None:
    wanted = replace(job(prompt, max_new_tokens), beams=beams, num_outputs=beams.size)
    alone = run_alone(wanted)
    expected = searched(prompt, beams, max_new_tokens)
    assert len(alone.ends_of(0)) == len(expected)
    for output, found in enumerate(expected):
        assert alone.tokens_of(0, output) == found.tokens
        assert alone.last_of(0, output).score == pytest.approx(found.score, abs=1e-5)


def test_a_search_has_its_source() -> None:
    beams = Beams(4)
    mixed = bench(num_slots=9, has_source=True)
    for id_ in range(4):
        wanted = job([1], 10, tuple(range(3 + id_, 9)))
        mixed.submit(id_, replace(wanted, beams=beams) if id_ % 2 else wanted)
    mixed.run()
    for id_ in range(4):
        source = tuple(range(3 + id_, 9))
        if id_ % 2:
            assert mixed.tokens_of(id_) == searched([1], beams, 10, source)[0].tokens
        else:
            assert mixed.tokens_of(id_) == reference([1], 10, source)


def test_what_a_search_streams_is_never_taken_back() -> None:
    wanted = replace(
        job([5, 6], 30), beams=Beams(3), logprob_options=LogprobOptions(top_logprobs=0)
    )
    alone = run_alone(wanted)
    pieces = [progress for progress in alone.updates if progress.tokens]
    assert len(pieces) > 2, "the beams agree on something before the end"
    told = [token for piece in pieces for token in piece.tokens]
    best = searched([5, 6], Beams(3), 30)[0]
    assert told == best.tokens
    logprobs = [row.logprob for piece in pieces for row in piece.logprobs]
    assert len(logprobs) == len(told)
    assert sum(logprobs) / len(told) == pytest.approx(best.score, abs=1e-5)


def test_samples_share_one_prefill() -> None:
    wanted = replace(job([3] * 20, 8), sampling=Sampling(1.5, seed=3), num_outputs=4)
    alone = bench(num_slots=4, max_batched_tokens=64)
    alone.submit(0, replace(wanted, eos=frozenset()))
    alone.run()
    assert alone.recorder.num_tokens("prefill") == 20
    texts = [alone.tokens_of(0, output) for output in range(4)]
    assert all(len(text) == 8 for text in texts)
    assert len({tuple(text) for text in texts}) > 1
    for output in range(4):  # each is what it would be alone with its own seed
        single = replace(
            wanted, sampling=Sampling(1.5, seed=3 + output), num_outputs=1, eos=frozenset()
        )
        assert run_alone(single).tokens_of(0) == texts[output]


def test_alternatives_are_the_likeliest_first_tokens() -> None:
    wanted = replace(job([4, 5, 6], 6), alternatives=True, num_outputs=3, eos=frozenset())
    alone = run_alone(wanted)
    order = np.argsort(-next_logits([4, 5, 6]))
    for output in range(3):
        first = int(order[output])
        after = reference([4, 5, 6, first], 5, eos=-1)
        assert alone.tokens_of(0, output) == [first, *after]


def test_one_sample_can_be_cancelled_alone() -> None:
    wanted = replace(job([3], 20), sampling=Sampling(1.0, seed=1), num_outputs=3, eos=frozenset())
    mixed = bench(num_slots=3)
    mixed.submit(0, wanted)
    for _ in range(3):
        mixed.step()
    mixed.generator.cancel(0, 1)
    mixed.run()
    outcomes = {output: end.outcome for output, end in mixed.ends_of(0).items()}
    assert outcomes == {0: Outcome.LENGTH, 1: Outcome.CANCELLED, 2: Outcome.LENGTH}


def test_more_rows_than_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rows wanted of 4"):
        bench(num_slots=4).submit(0, replace(job([1], 1), beams=Beams(5)))


def test_wide_requests_wait_for_rows_and_starve_nobody() -> None:
    mixed = bench(num_slots=4)
    for id_ in range(6):
        beams = Beams(4) if id_ % 2 else None
        mixed.submit(id_, replace(job([3, id_ + 1], 8), beams=beams))
    mixed.run()
    assert sorted(mixed.outcomes) == list(range(6))


# --- prefixes ------------------------------------------------------------------------------


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
def test_a_reused_prefix_changes_nothing(plans, num_slots) -> None:
    """Prompts that share long beginnings with others, running, waiting or gone."""
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


def test_a_second_prompt_reads_only_what_is_new() -> None:
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


# --- order ---------------------------------------------------------------------------------


def test_a_higher_priority_is_served_first_and_a_low_one_in_the_end() -> None:
    one = bench(num_slots=1)
    one.submit(0, job([2], 3))
    one.step()
    for id_, priority in ((1, 0), (2, 5), (3, -5), (4, 5)):
        one.submit(id_, replace(job([2, id_], 2), priority=priority, eos=frozenset()))
    one.run()
    order = list(dict.fromkeys(progress.id for progress in one.updates))
    assert order == [0, 2, 4, 1, 3]


def test_low_priority_is_not_starved() -> None:
    """Ever new requests of a higher priority: after its waiting time, the low one's turn comes."""
    one = bench(num_slots=1)
    one.submit(0, replace(job([2], 1), priority=0))
    one.submit(1, replace(job([3], 1), priority=-3))
    for id_ in range(2, 100):
        one.clock.now += 1.0
        one.submit(id_, replace(job([4], 1), priority=0))
        one.step()
    assert 1 in one.outcomes


def test_prompts_are_read_whatever_decodes() -> None:
    """More rows decode than a step may read: a prompt still gets ``min_chunk`` tokens of each."""
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


# --- adjusted logits and what is told of tokens ----------------------------------------------


def test_adjustments_reach_the_choice() -> None:
    free = run_alone(replace(job([8, 9], 12), eos=frozenset())).tokens_of(0)
    first = free[0]
    banned = replace(
        job([8, 9], 12),
        logits_options=LogitsOptions(logit_bias=((first, -100.0),)),
        eos=frozenset(),
    )
    assert first not in run_alone(banned).tokens_of(0)
    word = tuple(free[2:4])
    no_word = replace(
        job([8, 9], 12), logits_options=LogitsOptions(bad_word_ids=(word,)), eos=frozenset()
    )
    tokens = run_alone(no_word).tokens_of(0)
    assert tokens[:3] == free[:3]
    assert tokens[3] != free[3]


def test_prompt_logprobs_are_those_of_every_position() -> None:
    prompt = [(7 * k) % 96 + 1 for k in range(30)]
    for budget in (64, 5):
        one = bench(max_batched_tokens=budget)
        one.submit(0, replace(job(prompt, 0), logprob_options=LogprobOptions(prompt_logprobs=3)))
        one.submit(1, job([3, 4], 5))
        one.run()
        told = one.last_of(0).prompt_logprobs
        assert len(told) == 29
        for index, row in enumerate(told, 1):
            expected = log_probabilities(next_logits(prompt[:index]))
            assert row.logprob == pytest.approx(expected[prompt[index]], abs=1e-5)
            assert row.top[0][0] == int(expected.argmax())
        assert one.ends_of(0)[0].outcome == Outcome.LENGTH
        assert one.tokens_of(0) == []
        assert one.tokens_of(1) == reference([3, 4], 5)


def test_logprobs_are_of_the_models_own_distribution() -> None:
    wanted = replace(
        job([8, 9], 5),
        logits_options=LogitsOptions(logit_bias=((11, 50.0),)),
        logprob_options=LogprobOptions(top_logprobs=2),
        eos=frozenset(),
    )
    alone = run_alone(wanted)
    rows = [row for progress in alone.updates for row in progress.logprobs]
    assert alone.tokens_of(0) == [11] * 5
    expected = log_probabilities(next_logits([8, 9]))
    assert rows[0].logprob == pytest.approx(expected[11], abs=1e-5)
    assert rows[0].top[0][0] == int(expected.argmax())
    assert rows[0].top[0][1] == pytest.approx(expected.max(), abs=1e-5)


def test_a_search_ends_when_the_cache_is_full() -> None:
    prompt = [2] * (MAX_LENGTH - 3)
    alone = run_alone(replace(job(prompt, 3), beams=Beams(3), eos=frozenset()))
    assert len(alone.tokens_of(0)) == 3
