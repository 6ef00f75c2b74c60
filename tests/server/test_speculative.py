"""Speculative decoding by prompt lookup: the tokens of single runs, in fewer runs."""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.options import Beams, LogitsOptions, LogprobOptions, Sampling
from server.engine.requests.job import Delivery, GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.engine.speculative import accepted
from server.telemetry.metrics import Metrics
from tests.server.fake_backend import EOS, next_token, reference
from tests.server.mixed_batches import FAULTS, NUM_SLOTS, mixed_batches, run_batched
from tests.server.test_forking import assert_same_output, generation_jobs
from tests.server.worker_harness import MAX_LENGTH, WorkerHarness, make_harness

PERIOD = 5
PROMPT = (11, 12, 13, 14, 15, 11, 12, 13)


def drafting_harness(**options: Any) -> WorkerHarness:
    """A worker whose outputs often repeat what was five tokens before."""
    return make_harness(is_recurrent=False, period=PERIOD, **options)


def endless(max_new_tokens: int, prompt: tuple[int, ...] = PROMPT) -> GenerationJob:
    """A job without an end token."""
    return GenerationJob(prompt, max_new_tokens)


def expected(max_new_tokens: int, prompt: tuple[int, ...] = PROMPT, eos: int = -1) -> list[int]:
    return reference(prompt, max_new_tokens, eos=eos, period=PERIOD)


def num_drafted(harness: WorkerHarness) -> int:
    return sum(run.num_draft_tokens for run in harness.recorder.runs)


def num_accepted(harness: WorkerHarness) -> int:
    return sum(run.num_accepted_tokens for run in harness.recorder.runs)


@pytest.fixture
def no_failed_run(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Checks that no run failed: it would be repeated without a draft, which hides a defect."""
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("no_failed_run")
@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("has_source", [False, True])
def test_tokens_are_those_of_single_runs(delivery: Delivery, *, has_source: bool) -> None:
    harness = drafting_harness(has_source=has_source)
    harness.may_continue = lambda: True
    source = (3, 4) if has_source else ()
    job = replace(endless(40), source=source, delivery=delivery)
    harness.submit(1, job)
    harness.run()
    assert harness.tokens_of(1) == reference(PROMPT, 40, source, eos=-1, period=PERIOD)
    assert num_accepted(harness) > 10
    assert harness.graph.num_runs == 40 - num_accepted(harness)
    times = [time for update in harness.updates for time in update.token_times]
    assert len(times) == 40


@pytest.mark.usefixtures("no_failed_run")
def test_the_first_draft_comes_from_the_source() -> None:
    """The output begins with the prompt's tokens, each of which the prompt has once."""
    prompt = PROMPT[:PERIOD]
    sources = ((first, 15, 11, 12, 13, 14, 16) for first in range(20, 97))
    outputs = ((s, reference(prompt, 20, s, eos=-1, period=PERIOD)) for s in sources)
    source, tokens = next(pair for pair in outputs if pair[1][:4] == [11, 12, 13, 14])
    harness = drafting_harness(has_source=True)
    harness.submit(1, replace(endless(20, prompt), source=source))
    harness.run()
    assert harness.tokens_of(1) == tokens
    first = next(run for run in harness.recorder.runs if run.phase == "decode")
    assert (first.num_draft_tokens, first.num_accepted_tokens) == (3, 3)  # 12, 13, 14


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    arrivals=mixed_batches(
        st.builds(
            lambda prompt, size, delivery: GenerationJob(
                tuple(prompt), size, eos=frozenset({EOS}), delivery=delivery
            ),
            st.lists(st.integers(0, 9), min_size=1, max_size=30),
            st.integers(1, 40),
            st.sampled_from(Delivery),
        )
        | generation_jobs()
    ),
    has_source=st.booleans(),
    num_prefix_slots=st.integers(0, 2),
)
def test_batches_have_the_outputs_of_single_runs(arrivals, has_source, num_prefix_slots) -> None:
    """All decoding methods; some runs raise, or return NaN, after any token.

    A model with recurrent states makes no drafts.
    """
    options = {"has_source": has_source, "period": PERIOD, **FAULTS}
    single = make_harness(num_slots=NUM_SLOTS, is_recurrent=True, **options)
    drafting = make_harness(
        num_slots=NUM_SLOTS, is_recurrent=False, num_prefix_slots=num_prefix_slots, **options
    )
    for harness in (single, drafting):
        run_batched(harness, arrivals, (3, 4) if has_source else ())
        assert harness.worker.stats.num_running == 0
    assert not num_drafted(single)
    for id_ in range(len(arrivals)):
        assert_same_output(drafting, id_, single, id_)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.integers(0, 3), max_size=6),
)
def test_accepted_tokens_are_the_greedy_ones(tokens, draft) -> None:
    """As many as match the draft, and one more. The model has four tokens."""

    def greedy_token(seen: list[int]) -> int:
        return next_token(seen) % 4

    best = [greedy_token([*tokens, *draft[:size]]) for size in range(len(draft) + 1)]
    greedy = [greedy_token(tokens)]
    while greedy[-1] != EOS and greedy == draft[: len(greedy)]:
        greedy.append(greedy_token([*tokens, *greedy]))
    assert accepted(best, draft, {EOS}) == greedy


def test_logits_that_are_not_finite_end_what_is_accepted() -> None:
    assert accepted([1, 2, None, 4], [1, 2, 3], ()) == [1, 2]
    assert accepted([None, 2], [1], ()) == []


@pytest.mark.usefixtures("no_failed_run")
def test_output_ends_at_an_end_token_among_accepted_tokens() -> None:
    """The prompt has the end token, and the output repeats the prompt."""
    prompt = (11, 12, 13, EOS, 15, 11, 12, 13, EOS, 15, 11, 12)
    tokens = expected(40, prompt, eos=EOS)
    assert tokens == [13, EOS]
    harness = drafting_harness()
    harness.submit(1, replace(endless(40, prompt[:-1]), eos=frozenset({EOS})))
    harness.run()
    assert harness.tokens_of(1) == [12, 13, EOS]
    assert harness.outcomes[1] == [Outcome.STOP]
    drafted = [run for run in harness.recorder.runs if run.num_draft_tokens]
    assert [(run.num_draft_tokens, run.num_accepted_tokens) for run in drafted] == [(3, 1)]


@pytest.mark.usefixtures("no_failed_run")
@pytest.mark.parametrize("max_new_tokens", range(1, 12))
def test_no_more_tokens_than_asked_for(max_new_tokens: int) -> None:
    harness = drafting_harness()
    harness.submit(1, endless(max_new_tokens))
    harness.run()
    assert harness.tokens_of(1) == expected(max_new_tokens)
    assert harness.outcomes[1] == [Outcome.LENGTH]


@pytest.mark.usefixtures("no_failed_run")
@pytest.mark.parametrize("length", range(MAX_LENGTH - 6, MAX_LENGTH + 1))
def test_output_ends_where_its_slot_is_full(length: int) -> None:
    """No run writes after the slot: the fake graph would raise, and the log would have it."""
    prompt = tuple(itertools.islice(itertools.cycle(PROMPT[:PERIOD]), length))
    harness = drafting_harness()
    harness.submit(1, endless(MAX_LENGTH, prompt))
    harness.run()
    assert harness.outcomes[1] == [Outcome.LENGTH]
    assert harness.tokens_of(1) == expected(MAX_LENGTH + 1 - length, prompt)
    assert num_drafted(harness) or length > MAX_LENGTH - 2


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling(temperature=1.0, seed=3)},
        {"logits_options": LogitsOptions(repetition_penalty=1.5)},
        {"logprob_options": LogprobOptions(top_logprobs=1)},
        {"beams": Beams(2)},
        {"num_outputs": 2, "alternatives": True},
    ],
    ids=["sampling", "processor", "logprobs", "beams", "alternatives"],
)
def test_other_jobs_make_no_drafts(change: dict[str, Any]) -> None:
    harness = drafting_harness()
    harness.submit(1, replace(endless(20), **change))
    harness.run()
    assert harness.outcomes[1]
    assert not num_drafted(harness)


@pytest.mark.parametrize(
    "options", [{"has_buckets": True}, {"samples_on_device": True}], ids=["padded", "sampler"]
)
def test_a_model_on_a_device_makes_no_drafts(options: dict[str, Any]) -> None:
    harness = drafting_harness(memory="device", **options)
    harness.submit(1, endless(20))
    harness.run()
    assert harness.tokens_of(1) == expected(20)
    assert not num_drafted(harness)


def test_sequences_together_make_no_drafts() -> None:
    """The sequence that is left drafts again, from the tokens that it decoded in between too."""
    harness = drafting_harness()
    harness.submit(1, endless(40))
    for _ in range(3):
        harness.step()
    before = num_drafted(harness)
    assert before
    harness.submit(2, endless(8, (7, 8, 7, 8)))
    while 2 not in harness.outcomes:
        harness.step()
    assert num_drafted(harness) == before
    harness.run()
    assert num_drafted(harness) > before
    assert harness.tokens_of(1) == expected(40)
    assert harness.tokens_of(2) == expected(8, (7, 8, 7, 8))


@pytest.mark.usefixtures("no_failed_run")
def test_next_prompt_reuses_only_accepted_tokens() -> None:
    """The prompt of the second turn is the conversation so far and one more token."""
    first = endless(40, PROMPT * 2)
    harness = drafting_harness(num_prefix_slots=2)
    harness.submit(1, first)
    harness.run()
    assert num_drafted(harness) > num_accepted(harness) > 0
    prompt = (*first.prompt, *harness.tokens_of(1), 9)[: MAX_LENGTH - 4]
    harness.submit(2, endless(4, prompt))
    harness.run()
    assert harness.completions_of(2)[0].num_reused_tokens >= 50
    assert harness.tokens_of(2) == expected(4, prompt)


def test_metrics_count_drafted_and_accepted_tokens() -> None:
    harness, metrics = drafting_harness(), Metrics()
    harness.submit(1, endless(40))
    harness.run()
    for report in harness.recorder.runs:
        metrics.on_run("m", report)
    counts = (("draft", num_drafted(harness)), ("accepted", num_accepted(harness)))
    for name, count in counts:
        line = f'triune_{name}_tokens_total{{model="m"}} {float(count)}\n'
        assert line.encode() in metrics.exposition()


def test_cancelled_output_is_a_prefix() -> None:
    harness = drafting_harness()
    harness.submit(1, endless(40))
    for _ in range(4):
        harness.step()
    harness.worker.cancel(1)
    harness.run()
    assert harness.outcomes[1] == [Outcome.CANCELLED]
    tokens = harness.tokens_of(1)
    assert num_accepted(harness) > 0
    assert tokens == expected(len(tokens))


@pytest.mark.parametrize(
    ("limit", "outcome"), [("deadline", Outcome.DEADLINE), ("finish_by", Outcome.TIME_LIMIT)]
)
@pytest.mark.parametrize("delivery", Delivery)
def test_no_run_begins_after_a_deadline(limit: str, outcome: Outcome, delivery: Delivery) -> None:
    """Each run takes a second; the first is the prompt's."""
    harness = drafting_harness()
    harness.may_continue = lambda: True

    def advance() -> None:
        harness.clock.now += 1.0

    harness.graph.on_run = advance
    limits: dict[str, Any] = {limit: 5.5}
    harness.submit(1, replace(endless(40), delivery=delivery, **limits))
    harness.run()
    assert harness.outcomes[1] == [outcome]
    assert harness.graph.num_runs == 6
    assert num_accepted(harness) > 0
    assert harness.tokens_of(1) == expected(6 + num_accepted(harness))


@pytest.mark.parametrize("fault", [{"poison": 50}, {"fail": 50}], ids=["poison", "fail"])
def test_a_wrong_draft_that_cannot_run_ends_no_output(fault: dict[str, int]) -> None:
    """The prompt is ``s t 50 8 s`` and the output begins with ``t``: the draft is ``50 8 s``.

    The faults begin after the prompt has run.
    """
    prompt = next(
        prompt
        for token in range(1, 97)
        for first in range(1, 97)
        if next_token(prompt := (first, token, 50, 8, first)) == token
        and 50 not in reference(prompt, 20, eos=-1)
    )
    tokens = reference(prompt, 20, eos=-1)
    harness = make_harness(is_recurrent=False)
    harness.submit(1, endless(20, prompt))
    harness.step()
    vars(harness.graph).update(fault)
    before = harness.graph.num_runs
    harness.run()
    assert harness.tokens_of(1) == tokens
    assert harness.graph.num_runs == before + 1 + 19, "the run over the draft was repeated"
