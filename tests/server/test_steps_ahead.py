"""Decode steps that start ahead in a worker do not change its tokens."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import Beams, LogitsOptions, LogprobOptions, Sampling
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.device_logits import LogitsReader
from server.engine.gpu.sampler_inputs import LogitsSpec
from server.engine.model_runner import ModelRunner
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.engine.scheduler import StepLimits
from tests.server.best_decode import BestDecode
from tests.server.fake_backend import (
    EOS,
    VOCABULARY,
    Early,
    FakeEncode,
    Late,
    Start,
    decode_spec,
    reference,
)
from tests.server.mixed_batches import (
    FAULTS,
    NUM_SLOTS,
    mixed_batches,
    run_alone_with_faults,
    run_batched,
)
from tests.server.samplers import device_sampler, load_model
from tests.server.test_forking import assert_same_output, run_alone
from tests.server.worker_harness import (
    MAX_LENGTH,
    MEMORIES,
    Clock,
    Recorder,
    WorkerHarness,
    make_job,
)


def make_harness(
    *,
    has_source: bool = False,
    is_recurrent: bool = False,
    keeps_logits: bool = True,
    row_buckets: Sequence[int] = range(1, NUM_SLOTS + 1),
    max_batched_tokens: int = 16,
    start: Start = Early,
    feeds_back: bool = False,
    **graph: int,
) -> WorkerHarness:
    """A worker as on a GPU.

    ``keeps_logits``: on the device, where it samples too. ``row_buckets``: sizes of decode steps,
    by default without padding. ``start``: how the device runs a step.
    """
    decode, clock, recorder = BestDecode(feeds_back=feeds_back, **graph), Clock(), Recorder()
    decode.start = start
    logits, capacity = LogitsSpec(VOCABULARY), Capacity(NUM_SLOTS, MAX_LENGTH, MAX_LENGTH)
    runner = ModelRunner(
        decode_spec(has_source=has_source, is_recurrent=is_recurrent),
        decode,
        FakeEncode() if has_source else None,
        capacity,
        memory=MEMORIES["device"],
        buckets=Buckets(tuple(row_buckets), (MAX_LENGTH,)),
        reader=LogitsReader(load_model, logits) if keeps_logits else None,
    )
    limits = StepLimits(NUM_SLOTS, max_batched_tokens, min_chunk=4)
    sampler = device_sampler(logits) if keeps_logits else None
    worker = GenerationWorker("fake", runner, capacity, limits, clock, recorder, sampler)
    harness = WorkerHarness(worker, decode, clock, recorder, runner.cache)
    harness.may_continue = lambda: True
    return harness


# Whether a step has run before it is waited for.
STARTS = st.sampled_from([Early, Late])


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    arrivals=mixed_batches(),
    may_continue=st.lists(st.booleans(), min_size=1, max_size=9),
    max_batched_tokens=st.integers(1, 64),
    has_source=st.booleans(),
    start=STARTS,
    feeds_back=st.booleans(),
)
def test_tokens_are_those_of_steps_in_turn(
    arrivals, may_continue, max_batched_tokens, has_source, start, feeds_back
) -> None:
    """Some runs fail, also of steps that started ahead."""
    options: dict[str, Any] = {"is_recurrent": False, "has_source": has_source}
    batched = make_harness(
        max_batched_tokens=max_batched_tokens,
        start=start,
        feeds_back=feeds_back,
        **options,
        **FAULTS,
    )
    answers = cycle(may_continue)
    batched.may_continue = lambda: next(answers)
    jobs = run_batched(batched, arrivals, (3, 4) if has_source else ())
    for id_, job in enumerate(jobs):
        alone = run_alone_with_faults(job, **options)
        assert_same_output(batched, id_, alone, max_difference=1e-5)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=st.lists(
        st.tuples(
            st.lists(st.integers(1, 96), min_size=1, max_size=40),
            st.integers(1, 20),
            st.integers(0, 12),
        ),
        min_size=2,
        max_size=9,
    ),
    cancels=st.sets(st.tuples(st.integers(0, 8), st.integers(1, 20)), max_size=6),
    has_source=st.booleans(),
    start=STARTS,
    feeds_back=st.booleans(),
)
def test_slots_change_only_between_steps(jobs, cancels, has_source, start, feeds_back) -> None:
    """Jobs begin and end after a step started ahead for others, and for slots as padding."""
    batched = make_harness(
        has_source=has_source, row_buckets=(2, NUM_SLOTS), start=start, feeds_back=feeds_back
    )
    source = (3, 4) if has_source else ()
    for now in range(21):
        for id_, (prompt, budget, arrival) in enumerate(jobs):
            if arrival == now:
                batched.submit(id_, make_job(prompt, budget, source))
            if (id_, now) in cancels:
                batched.worker.cancel(id_)
        batched.step()
    batched.run()
    cancelled = {id_ for id_, _ in cancels}
    for id_, (prompt, budget, _) in enumerate(jobs):
        expected, tokens = reference(prompt, budget, source), batched.tokens_of(id_)
        assert tokens == (expected[: len(tokens)] if id_ in cancelled else expected)


def steps_of(harness: WorkerHarness) -> int:
    graph = harness.graph
    assert isinstance(graph, BestDecode)
    return len(graph.steps)


def test_all_steps_but_the_first_start_ahead() -> None:
    harness = make_harness()
    harness.submit(0, make_job([5], 6))
    harness.submit(1, make_job([6], 6))
    numbers = []
    while harness.worker.has_work:
        harness.step()
        numbers.append(steps_of(harness))
    # The first step admits, and the last has no other after it.
    assert numbers == [0, 2, 3, 4, 5, 6, 6]
    assert harness.tokens == {0: reference([5], 6), 1: reference([6], 6)}


@pytest.mark.parametrize("is_recurrent", [False, True])
def test_starts_no_step_if_it_may_not(is_recurrent: bool) -> None:
    """There is other work, or a step would change recurrent states."""
    harness = make_harness(is_recurrent=is_recurrent)
    harness.may_continue = lambda: is_recurrent
    harness.submit(0, make_job([5], 6))
    numbers = []
    while harness.worker.has_work:
        harness.step()
        numbers.append(steps_of(harness))
    assert numbers == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "job",
    [
        replace(make_job([5], 8), beams=Beams(3), num_outputs=2),
        replace(make_job([5], 8), alternatives=True, num_outputs=3),
    ],
    ids=["beams", "alternatives"],
)
def test_forks_read_the_logits_of_their_step(job: GenerationJob) -> None:
    harness = make_harness()
    harness.submit(0, job)
    harness.run()
    alone = run_alone(job, is_recurrent=False)
    assert_same_output(harness, 0, alone, max_difference=1e-5)


def test_a_host_that_samples_reads_the_logits_of_its_step() -> None:
    harness = make_harness(keeps_logits=False)
    harness.submit(0, make_job([5], 8))
    harness.run()
    assert harness.tokens_of(0) == reference([5], 8)


GREEDY = GenerationJob((5, 6), 3, eos=frozenset({EOS}))


@pytest.mark.parametrize(
    ("job", "num_generated", "likeliest", "expected"),
    [
        (GREEDY, 0, 7, True),
        (GREEDY, 1, 7, True),
        (GREEDY, 2, 7, False),
        (GREEDY, 0, EOS, False),
        (GREEDY, 0, -1, False),
        (replace(GREEDY, eos=frozenset()), 0, EOS, True),
        (replace(GREEDY, sampling=Sampling(1.0)), 0, 7, False),
        (replace(GREEDY, logits_options=LogitsOptions(repetition_penalty=1.3)), 0, 7, False),
        (replace(GREEDY, logprob_options=LogprobOptions(top_logprobs=2)), 0, 7, False),
        (replace(GREEDY, logprob_options=LogprobOptions(first_token_ids=(7,))), 0, 7, False),
        (replace(GREEDY, logprob_options=LogprobOptions(first_token_ids=(7,))), 1, 7, True),
        (replace(GREEDY, beams=Beams(2)), 0, 7, False),
        (replace(GREEDY, alternatives=True, num_outputs=2), 0, 7, False),
    ],
    ids=[
        *("first token", "second token", "last token", "end", "not finite", "no end"),
        *("sampling", "penalty", "log-probabilities"),
        *("first log-probabilities", "after them", "beams", "alternatives"),
    ],
)
def test_a_sequence_continues_with_its_likeliest_token(
    job: GenerationJob, num_generated: int, likeliest: int, expected: bool
) -> None:
    sequence = DecodingSequence.first_of(0, job)
    sequence.tokens += [8] * num_generated
    assert (sequence.may_run_ahead and sequence.continues_with(likeliest)) == expected
