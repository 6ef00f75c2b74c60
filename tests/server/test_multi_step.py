"""Several decode runs in one step, for whole outputs: the same tokens, in fewer steps."""

from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.options import Beams, LogitsOptions, LogprobOptions, Sampling
from server.engine.lane import Add, Cancel, Lane, Stop, Submit
from server.engine.observer import Unobserved
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import Delivery, GenerationJob
from server.engine.requests.lifecycle import Outcome, Phase
from server.engine.requests.update import JobUpdate
from server.engine.scheduler import StepLimits, schedule
from tests.server.fake_backend import reference
from tests.server.mixed_batches import FAULTS, NUM_SLOTS, mixed_batches, run_batched
from tests.server.test_forking import assert_same_output, generation_jobs
from tests.server.test_scheduler import Item
from tests.server.worker_harness import MAX_LENGTH, WorkerHarness, make_harness, make_job


def whole(job: GenerationJob) -> GenerationJob:
    return replace(job, delivery=Delivery.WHOLE)


def endless(max_new_tokens: int, prompt: tuple[int, ...] = (5, 6)) -> GenerationJob:
    """A job without an end token."""
    return GenerationJob(prompt, max_new_tokens, delivery=Delivery.WHOLE)


def multi_step_harness(**options: Any) -> WorkerHarness:
    harness = make_harness(**options)
    harness.may_continue = lambda: True
    return harness


jobs = st.builds(
    make_job, st.lists(st.integers(1, 96), min_size=1, max_size=12), st.integers(1, 20)
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    arrivals=mixed_batches(jobs | generation_jobs()),
    may_continue=st.lists(st.booleans(), min_size=1, max_size=9),
    is_recurrent=st.booleans(),
    has_source=st.booleans(),
)
def test_tokens_and_outcomes_are_those_of_single_steps(
    arrivals, may_continue, is_recurrent, has_source
) -> None:
    """Batches of all decoding methods; some runs raise, or return NaN, after any token.

    Single steps deliver each token, but those of a beam search, which a failure would lose.
    """
    options: dict[str, Any] = {"is_recurrent": is_recurrent, "has_source": has_source, **FAULTS}
    single, several = (make_harness(num_slots=NUM_SLOTS, **options) for _ in range(2))
    answers = cycle(may_continue)
    several.may_continue = lambda: next(answers)
    changed = [
        (job if job.beams is None else whole(job), failing, steps)
        for job, failing, steps in arrivals
    ]
    whole_jobs = [(whole(job), failing, steps) for job, failing, steps in arrivals]
    for harness, batch in ((single, changed), (several, whole_jobs)):
        run_batched(harness, batch, (3, 4) if has_source else ())
        assert harness.worker.stats.num_running == 0
    for id_ in range(len(arrivals)):
        assert_same_output(several, id_, single, id_)
        last = several.last_update_of(id_)
        assert len(last.token_times) == len(last.tokens)
        assert list(last.token_times) == sorted(last.token_times)


def test_one_step_decodes_all_tokens() -> None:
    harness = multi_step_harness(num_slots=2)
    harness.submit(1, endless(20))
    harness.submit(2, endless(12, (7, 8)))
    for num_runs in (1, 1 + 11, 1 + 11 + 8):  # the prompts, both, the rest of the longer output
        assert harness.worker.has_work
        harness.step()
        assert harness.graph.num_runs == num_runs
    assert not harness.worker.has_work
    assert harness.tokens_of(1) == reference((5, 6), 20, eos=-1)
    assert harness.tokens_of(2) == reference((7, 8), 12, eos=-1)
    assert sum(len(run.seconds) for run in harness.recorder.runs) == harness.graph.num_runs


@pytest.mark.parametrize(
    "change",
    [
        {"delivery": Delivery.EACH},
        {"delivery": Delivery.STREAM},
        {"sampling": Sampling(temperature=1.0, seed=3)},
        {"logits_options": LogitsOptions(repetition_penalty=1.5)},
        {"logprob_options": LogprobOptions(top_logprobs=1)},
        {"beams": Beams(2)},
    ],
    ids=["each", "stream", "sampling", "processor", "logprobs", "beams"],
)
def test_other_jobs_have_one_run_in_a_step(change) -> None:
    """It also holds back the others of its batch, whose tokens are ready at the same time."""
    harness = multi_step_harness()
    harness.submit(1, endless(9))
    harness.submit(2, replace(endless(9, (7, 8)), **change))
    harness.step()
    for _ in range(3):
        before = harness.graph.num_runs
        harness.step()
        assert harness.graph.num_runs == before + 1


@pytest.mark.parametrize(
    ("limit", "outcome"), [("deadline", "DEADLINE"), ("finish_by", "TIME_LIMIT")]
)
def test_no_run_begins_after_a_deadline(limit: str, outcome: str) -> None:
    """Each run takes a second; the first is the prompt's."""
    harness = multi_step_harness()

    def advance() -> None:
        harness.clock.now += 1.0

    harness.graph.on_run = advance
    limits: dict[str, Any] = {limit: 5.5}
    harness.submit(1, replace(endless(40), **limits))
    harness.submit(2, endless(40, (7, 8)))
    harness.run()
    assert harness.outcomes[1] == [Outcome[outcome]]
    assert harness.tokens_of(1) == reference((5, 6), 6, eos=-1)
    assert harness.last_update_of(1).token_times == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert harness.tokens_of(2) == reference((7, 8), 40, eos=-1)


def test_output_ends_where_its_slot_is_full() -> None:
    harness = multi_step_harness()
    harness.submit(1, endless(MAX_LENGTH + 10))
    harness.run()
    assert harness.outcomes[1] == [Outcome.LENGTH]
    assert len(harness.tokens_of(1)) == MAX_LENGTH + 1 - 2  # the last one is not cached


def test_lane_handles_a_command_between_two_runs() -> None:
    """The harness's graph sends the commands, in its third and ninth run."""
    harness = make_harness()
    finished: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def publish(updates: list[JobUpdate]) -> None:
        finished.extend((update.id, len(update.tokens)) for update in updates)
        if len(finished) == 2:
            lane.send(Stop())

    lane = Lane(0, publish, errors.append, Unobserved(), BusyLanes())

    def send() -> None:
        if harness.graph.num_runs == 3:
            lane.send(Submit(0, 8, [endless(2, (7, 8))]))
        if harness.graph.num_runs == 9:
            lane.send(Cancel(0, range(7, 8)))

    harness.graph.on_run = send
    lane.send(Add(0, harness.worker, lambda: None), Submit(0, 7, [endless(50)]))
    lane.start()
    lane.join(60)
    assert not errors
    assert finished == [(8, 2), (7, 8)]


def test_lane_takes_turns_between_models() -> None:
    """Each of two models gets one run in turn, until one of them has no more work."""
    order: list[int] = []
    errors: list[BaseException] = []
    num_finished = 0

    def publish(updates: list[JobUpdate]) -> None:
        nonlocal num_finished
        num_finished += len(updates)
        if num_finished == 2:
            lane.send(Stop())

    lane = Lane(0, publish, errors.append, Unobserved(), BusyLanes())
    for model_id, num_tokens in enumerate((4, 8)):
        harness = make_harness()
        harness.graph.on_run = partial(order.append, model_id)
        lane.send(Add(model_id, harness.worker, lambda: None))
        lane.send(Submit(model_id, 10 * model_id, [endless(num_tokens, (5,))]))
    lane.start()
    lane.join(60)
    assert not errors
    assert order == [0, 1] * 4 + [1] * 4


def test_plan_of_one_batch_goes_on_only_if_nothing_else_is_to_be_done() -> None:
    limits = StepLimits(num_slots=4, max_batched_tokens=16)
    running = [
        Item(id_, 1, 5, phase=Phase.DECODING, max_decode_runs=number)
        for id_, number in enumerate((9, 7))
    ]
    assert schedule((), running, limits).num_decode_runs == 7
    assert schedule([Item(5, 3)], running, limits).num_decode_runs == 1
    prefilling = Item(6, 30, 5, phase=Phase.PREFILLING, max_decode_runs=20)
    assert schedule((), [*running, prefilling], limits).num_decode_runs == 1
    held = schedule([Item(5, 1, num_source_tokens=3)], running, limits, runs_since_encode=1)
    assert (held.admit, held.num_decode_runs) == ((), 1)


def test_a_failing_token_repeats_the_runs_before_it_once() -> None:
    """The job fails alone when it reads its own 20th token, which the fake graph cannot run."""
    tokens = reference((5, 6), 20, eos=-1)
    assert tokens.count(tokens[-1]) == 1
    harness = multi_step_harness(fail=tokens[-1])
    harness.submit(1, endless(40))
    harness.run()
    assert harness.outcomes[1] == [Outcome.FAILED]
    assert harness.tokens_of(1) == tokens
    # The prompt, 20 runs of which the last fails, and again one by one.
    assert harness.graph.num_runs == 1 + 20 + 20


@pytest.mark.parametrize("is_recurrent", [True, False])
def test_sources_wait_for_decode_runs_not_for_steps(*, is_recurrent: bool) -> None:
    """With half of the slots in use, the encoder runs again after some decode runs."""
    harness = make_harness(num_slots=2, has_source=True, is_recurrent=is_recurrent)
    answers = iter([True] * 11)
    harness.may_continue = lambda: next(answers, False)
    harness.submit(1, replace(endless(40, (1,)), source=(3, 4)))
    for _ in range(2):  # the encoder; 12 runs
        harness.step()
    assert harness.graph.num_runs == 12
    harness.submit(2, replace(endless(2, (1,)), source=(7, 8)))
    harness.step()
    assert harness.worker.stats.num_running == 2


@pytest.mark.parametrize(
    "options", [{"has_buckets": True}, {"samples_on_device": True}], ids=["padded", "sampler"]
)
def test_a_model_on_a_device_has_one_run_in_a_step(options: dict[str, Any]) -> None:
    harness = multi_step_harness(memory="device", **options)
    harness.submit(1, endless(9))
    harness.run()
    assert harness.tokens_of(1) == reference((5, 6), 9, eos=-1)
    assert all(len(run.seconds) == 1 for run in harness.recorder.runs)
