"""Samples, alternatives and beams, in any batch, over a fake runtime."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.constraint import Floats
from server.engine.decoding.beam import BeamSearch
from server.engine.decoding.options import (
    Beams,
    EarlyStopping,
    LogprobOptions,
    Sampling,
)
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.runtime.host_ops import log_sum_exp, top_tokens
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
    """The reference: the same search, each hypothesis computed from scratch without a cache."""
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
    """Greedy jobs, samples, alternatives and beam searches."""
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
    """Asserts that job ``id_`` of ``mixed`` ended as job 0 of ``alone``."""
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
def test_output_does_not_depend_on_the_batch(mixed_jobs, max_batched_tokens, is_recurrent) -> None:
    mixed = bench(
        num_slots=NUM_SLOTS, max_batched_tokens=max_batched_tokens, is_recurrent=is_recurrent
    )
    for id_, (wanted, steps_before) in enumerate(mixed_jobs):
        for _ in range(steps_before):
            mixed.step()
        mixed.submit(id_, wanted)
    mixed.run()
    assert mixed.worker.stats.num_running == 0
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
def test_cancelling_does_not_change_other_jobs(mixed_jobs, cancels, is_recurrent) -> None:
    mixed = bench(num_slots=NUM_SLOTS, is_recurrent=is_recurrent)
    for id_, wanted in enumerate(mixed_jobs):
        mixed.submit(id_, wanted)
    cancelled = set()
    for step in range(16):
        for id_, _, output in (cancel for cancel in cancels if cancel[1] == step):
            mixed.worker.cancel(id_, output)
            cancelled.add(id_)
        mixed.step()
    mixed.run()
    assert mixed.worker.stats.num_running == 0
    for id_, wanted in enumerate(mixed_jobs):
        lasts = [update for update in mixed.updates if update.id == id_ and update.is_last]
        assert len(lasts) == 1
        if id_ not in cancelled:
            same(mixed, id_, run_alone(wanted, is_recurrent=is_recurrent))


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(prompt=prompts, beams=beam_options, max_new_tokens=st.integers(1, 15))
def test_a_search_over_slots_matches_the_reference(prompt, beams, max_new_tokens) -> None:
    wanted = replace(job(prompt, max_new_tokens), beams=beams, num_outputs=beams.size)
    alone = run_alone(wanted)
    expected = searched(prompt, beams, max_new_tokens)
    assert len(alone.ends_of(0)) == len(expected)
    for output, found in enumerate(expected):
        assert alone.tokens_of(0, output) == found.tokens
        assert alone.last_of(0, output).score == pytest.approx(found.score, abs=1e-5)


def test_searches_of_an_encoder_decoder_match_the_reference() -> None:
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


def test_tokens_that_a_search_streams_are_final() -> None:
    wanted = replace(
        job([5, 6], 30), beams=Beams(3), logprob_options=LogprobOptions(top_logprobs=0)
    )
    alone = run_alone(wanted)
    pieces = [update for update in alone.updates if update.tokens]
    assert len(pieces) > 2, "the beams agree on something before the end"
    published = [token for piece in pieces for token in piece.tokens]
    best = searched([5, 6], Beams(3), 30)[0]
    assert published == best.tokens
    logprobs = [row.logprob for piece in pieces for row in piece.logprobs]
    assert len(logprobs) == len(published)
    assert sum(logprobs) / len(published) == pytest.approx(best.score, abs=1e-5)


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
    mixed.worker.cancel(0, 1)
    mixed.run()
    outcomes = {output: end.outcome for output, end in mixed.ends_of(0).items()}
    assert outcomes == {0: Outcome.LENGTH, 1: Outcome.CANCELLED, 2: Outcome.LENGTH}


def test_a_job_that_needs_more_slots_than_exist_is_rejected() -> None:
    with pytest.raises(ValueError, match="needs 5 slots, there are 4"):
        bench(num_slots=4).submit(0, replace(job([1], 1), beams=Beams(5)))


def test_jobs_with_many_beams_wait_for_slots_without_starving_others() -> None:
    mixed = bench(num_slots=4)
    for id_ in range(6):
        beams = Beams(4) if id_ % 2 else None
        mixed.submit(id_, replace(job([3, id_ + 1], 8), beams=beams))
    mixed.run()
    assert sorted(mixed.outcomes) == list(range(6))


@dataclass
class AllowsNothing:
    """A constraint without any token."""

    def mask(self, logits: Floats) -> None:
        logits[:] = -np.inf

    def advance(self, token: int) -> None:
        raise NotImplementedError

    def fork(self) -> "AllowsNothing":
        return self


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sampling": Sampling(1.0), "num_outputs": 2},
        {"alternatives": True, "num_outputs": 2},
        {"beams": Beams(3)},
        {"beams": Beams(3), "num_outputs": 2},
    ],
)
def test_a_job_whose_constraint_allows_nothing_ends(change) -> None:
    alone = run_alone(replace(job([5, 6], 8), constraint=AllowsNothing(), **change))
    assert [update.is_last for update in alone.updates] == [False] * (len(alone.updates) - 1) + [
        True
    ]
    assert {end.outcome for end in alone.ends_of(0).values()} == {Outcome.UNSATISFIABLE}
    assert alone.tokens_of(0) == []


@pytest.mark.parametrize("change", [{}, {"beams": Beams(3), "num_outputs": 2}, {"num_outputs": 3}])
def test_a_job_without_new_tokens_ends_all_outputs(change) -> None:
    alone = run_alone(replace(job([5, 6, 7], 0), **change))
    num_outputs = change.get("num_outputs", 1)
    assert [end.outcome for end in alone.ends_of(0).values()] == [Outcome.LENGTH] * num_outputs
    assert alone.updates[-1].is_last


def test_a_search_ends_when_the_cache_is_full() -> None:
    prompt = [2] * (MAX_LENGTH - 3)
    alone = run_alone(replace(job(prompt, 3), beams=Beams(3), eos=frozenset()))
    assert len(alone.tokens_of(0)) == 3
