"""Parallel samples, alternatives and beam search in mixed batches, on the fake runtime."""

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
from tests.server.worker_harness import MAX_LENGTH, WorkerHarness, make_harness, make_job

NUM_SLOTS = 6


@dataclass(frozen=True)
class ReferenceHypothesis:
    tokens: list[int]
    score: float


def reference_beam_search(
    prompt: Sequence[int], beams: Beams, max_new_tokens: int, source: Sequence[int] = ()
) -> list[ReferenceHypothesis]:
    """Reference beam search: recomputes each hypothesis from scratch, without a cache."""
    search = BeamSearch(beams, frozenset({EOS}), max_new_tokens)
    while not search.is_over:
        logits_rows = [
            next_logits((*prompt, *hypothesis.tokens), source) for hypothesis in search.live
        ]
        search.advance(
            [
                top_tokens(logits, search.num_candidates, log_sum_exp(logits))
                for logits in logits_rows
            ]
        )
    return [
        ReferenceHypothesis(list(hypothesis.tokens), hypothesis.score)
        for hypothesis in search.best(beams.size)
    ]


prompts = st.lists(st.integers(1, 96), min_size=1, max_size=30)
beam_options = st.builds(
    Beams,
    size=st.integers(2, 5),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early_stopping=st.sampled_from(EarlyStopping),
)


@st.composite
def generation_jobs(draw: st.DrawFn) -> GenerationJob:
    """Greedy, sampled, alternatives and beam search jobs."""
    greedy = make_job(draw(prompts), draw(st.integers(1, 12)))
    kind = draw(st.sampled_from(["greedy", "samples", "alternatives", "beams"]))
    if kind == "beams":
        beams = draw(beam_options)
        return replace(greedy, beams=beams, num_outputs=draw(st.integers(1, beams.size)))
    if kind == "samples":
        sampling = Sampling(1.2, top_k=20, seed=draw(st.integers(0, 99)))
        return replace(greedy, sampling=sampling, num_outputs=draw(st.integers(1, 4)))
    if kind == "alternatives":
        return replace(greedy, alternatives=True, num_outputs=draw(st.integers(2, 4)))
    return greedy


def run_alone(job: GenerationJob, **options: Any) -> WorkerHarness:
    alone = make_harness(num_slots=NUM_SLOTS, **options)
    alone.submit(0, job)
    alone.run()
    return alone


def assert_same_output(
    mixed: WorkerHarness,
    id_: int,
    other: WorkerHarness,
    other_id: int = 0,
    *,
    max_difference: float = 0.0,
) -> None:
    """Asserts that job ``id_`` of ``mixed`` has the same output as ``other_id`` of ``other``.

    ``max_difference``: of scores, if a device finds those of ``mixed``.
    """
    ends, other_ends = mixed.completions_of(id_), other.completions_of(other_id)
    assert sorted(ends) == sorted(other_ends)
    for output, end in ends.items():
        assert mixed.tokens_of(id_, output) == other.tokens_of(other_id, output)
        assert end.outcome == other_ends[output].outcome
        score = other.last_update_of(other_id, output).score
        found = mixed.last_update_of(id_, output).score
        if score is None:
            assert found is None
        else:
            assert found is not None
            assert abs(found - score) <= max_difference


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=st.lists(st.tuples(generation_jobs(), st.integers(0, 4)), min_size=1, max_size=9),
    max_batched_tokens=st.integers(1, 64),
    is_recurrent=st.booleans(),
)
def test_output_does_not_depend_on_the_batch(mixed_jobs, max_batched_tokens, is_recurrent) -> None:
    batched = make_harness(
        num_slots=NUM_SLOTS, max_batched_tokens=max_batched_tokens, is_recurrent=is_recurrent
    )
    for id_, (job, steps_before) in enumerate(mixed_jobs):
        for _ in range(steps_before):
            batched.step()
        batched.submit(id_, job)
    batched.run()
    assert batched.worker.stats.num_running == 0
    for id_, (job, _) in enumerate(mixed_jobs):
        assert_same_output(batched, id_, run_alone(job, is_recurrent=is_recurrent))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=st.lists(generation_jobs(), min_size=2, max_size=9),
    cancels=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 15), st.none() | st.integers(0, 3)),
        max_size=8,
    ),
    is_recurrent=st.booleans(),
)
def test_cancelling_does_not_change_other_jobs(mixed_jobs, cancels, is_recurrent) -> None:
    batched = make_harness(num_slots=NUM_SLOTS, is_recurrent=is_recurrent)
    for id_, job in enumerate(mixed_jobs):
        batched.submit(id_, job)
    cancelled = set()
    for step in range(16):
        for id_, _, output in (cancel for cancel in cancels if cancel[1] == step):
            batched.worker.cancel(id_, output)
            cancelled.add(id_)
        batched.step()
    batched.run()
    assert batched.worker.stats.num_running == 0
    for id_, job in enumerate(mixed_jobs):
        last_updates = [update for update in batched.updates if update.id == id_ and update.is_last]
        assert len(last_updates) == 1
        if id_ not in cancelled:
            assert_same_output(batched, id_, run_alone(job, is_recurrent=is_recurrent))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(prompt=prompts, beams=beam_options, max_new_tokens=st.integers(1, 15))
def test_beam_search_matches_the_reference(prompt, beams, max_new_tokens) -> None:
    job = replace(make_job(prompt, max_new_tokens), beams=beams, num_outputs=beams.size)
    alone = run_alone(job)
    expected = reference_beam_search(prompt, beams, max_new_tokens)
    assert len(alone.completions_of(0)) == len(expected)
    for output, hypothesis in enumerate(expected):
        assert alone.tokens_of(0, output) == hypothesis.tokens
        assert alone.last_update_of(0, output).score == pytest.approx(hypothesis.score, abs=1e-5)


def test_encoder_decoder_beam_search_matches_the_reference() -> None:
    beams = Beams(4)
    batched = make_harness(num_slots=9, has_source=True)
    for id_ in range(4):
        job = make_job([1], 10, tuple(range(3 + id_, 9)))
        batched.submit(id_, replace(job, beams=beams) if id_ % 2 else job)
    batched.run()
    for id_ in range(4):
        source = tuple(range(3 + id_, 9))
        if id_ % 2:
            assert batched.tokens_of(id_) == reference_beam_search([1], beams, 10, source)[0].tokens
        else:
            assert batched.tokens_of(id_) == reference([1], 10, source)


def test_beam_search_streams_only_final_tokens() -> None:
    job = replace(
        make_job([5, 6], 30), beams=Beams(3), logprob_options=LogprobOptions(top_logprobs=0)
    )
    alone = run_alone(job)
    updates = [update for update in alone.updates if update.tokens]
    assert len(updates) > 2, "the beams agree on something before the end"
    published = [token for update in updates for token in update.tokens]
    best = reference_beam_search([5, 6], Beams(3), 30)[0]
    assert published == best.tokens
    logprobs = [token.logprob for update in updates for token in update.logprobs]
    assert len(logprobs) == len(published)
    assert sum(logprobs) / len(published) == pytest.approx(best.score, abs=1e-5)


def test_parallel_samples_share_one_prefill() -> None:
    job = replace(make_job([3] * 20, 8), sampling=Sampling(1.5, seed=3), num_outputs=4)
    alone = make_harness(num_slots=4, max_batched_tokens=64)
    alone.submit(0, replace(job, eos=frozenset()))
    alone.run()
    assert alone.recorder.num_tokens("prefill") == 20
    texts = [alone.tokens_of(0, output) for output in range(4)]
    assert all(len(text) == 8 for text in texts)
    assert len({tuple(text) for text in texts}) > 1
    for output in range(4):  # equals a single sample with the same seed
        single = replace(
            job, sampling=Sampling(1.5, seed=3 + output), num_outputs=1, eos=frozenset()
        )
        assert run_alone(single).tokens_of(0) == texts[output]


def test_alternatives_start_with_the_top_first_tokens() -> None:
    job = replace(make_job([4, 5, 6], 6), alternatives=True, num_outputs=3, eos=frozenset())
    alone = run_alone(job)
    order = np.argsort(-next_logits([4, 5, 6]))
    for output in range(3):
        first = int(order[output])
        continuation = reference([4, 5, 6, first], 5, eos=-1)
        assert alone.tokens_of(0, output) == [first, *continuation]


def test_cancels_a_single_sample() -> None:
    job = replace(make_job([3], 20), sampling=Sampling(1.0, seed=1), num_outputs=3, eos=frozenset())
    batched = make_harness(num_slots=3)
    batched.submit(0, job)
    for _ in range(3):
        batched.step()
    batched.worker.cancel(0, 1)
    batched.run()
    outcomes = {output: end.outcome for output, end in batched.completions_of(0).items()}
    assert outcomes == {0: Outcome.LENGTH, 1: Outcome.CANCELLED, 2: Outcome.LENGTH}


def test_rejects_jobs_that_need_more_slots_than_exist() -> None:
    with pytest.raises(ValueError, match="needs 5 slots, there are 4"):
        make_harness(num_slots=4).submit(0, replace(make_job([1], 1), beams=Beams(5)))


def test_wide_beam_jobs_wait_for_slots_without_starving_others() -> None:
    mixed = make_harness(num_slots=4)
    for id_ in range(6):
        beams = Beams(4) if id_ % 2 else None
        mixed.submit(id_, replace(make_job([3, id_ + 1], 8), beams=beams))
    mixed.run()
    assert sorted(mixed.outcomes) == list(range(6))


@dataclass
class AllowsNothing:
    """A constraint that allows no token."""

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
def test_job_ends_if_its_constraint_allows_no_token(change) -> None:
    alone = run_alone(replace(make_job([5, 6], 8), constraint=AllowsNothing(), **change))
    assert [update.is_last for update in alone.updates] == [False] * (len(alone.updates) - 1) + [
        True
    ]
    assert {end.outcome for end in alone.completions_of(0).values()} == {Outcome.NO_TOKEN}
    assert alone.tokens_of(0) == []


@pytest.mark.parametrize("change", [{}, {"beams": Beams(3), "num_outputs": 2}, {"num_outputs": 3}])
def test_job_with_zero_new_tokens_ends_all_outputs(change) -> None:
    alone = run_alone(replace(make_job([5, 6, 7], 0), **change))
    num_outputs = change.get("num_outputs", 1)
    assert [end.outcome for end in alone.completions_of(0).values()] == [
        Outcome.LENGTH
    ] * num_outputs
    assert alone.updates[-1].is_last


def test_beam_search_ends_when_the_cache_is_full() -> None:
    prompt = [2] * (MAX_LENGTH - 3)
    alone = run_alone(replace(make_job(prompt, 3), beams=Beams(3), eos=frozenset()))
    assert len(alone.tokens_of(0)) == 3
