"""Prompts that arrive together share one prefill, within a cache scope."""

from dataclasses import replace
from typing import Any

import pytest

from server.engine.cache.admission_plan import plan_admissions
from server.engine.cache.prefix_cache import PrefixCache
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import DecodingSequence
from tests.server.fake_backend import reference
from tests.server.worker_harness import WorkerHarness, make_harness, make_job

SHARED = [k % 9 + 1 for k in range(40)]


def job(*suffix: int, scope: str = "") -> GenerationJob:
    return replace(make_job([*SHARED, *suffix], 4), cache_scope=scope)


def harness(num_slots: int = 4, max_batched_tokens: int = 128, **options: Any) -> WorkerHarness:
    return make_harness(
        num_slots=num_slots, max_batched_tokens=max_batched_tokens, is_recurrent=False, **options
    )


def num_reused(batched: WorkerHarness, id_: int) -> int:
    return batched.completions_of(id_)[0].num_reused_tokens


def assert_right_tokens(batched: WorkerHarness, jobs: dict[int, GenerationJob]) -> None:
    for id_, submitted in jobs.items():
        assert batched.tokens_of(id_) == reference(submitted.prompt, 4)
        assert batched.outcomes[id_] in ([Outcome.LENGTH], [Outcome.STOP])


def test_equal_prompts_are_prefilled_once() -> None:
    batched, jobs = harness(), {id_: job(70) for id_ in range(6)}
    for id_, submitted in jobs.items():
        batched.submit(id_, submitted)
    batched.run()
    assert batched.recorder.num_tokens("prefill") == 41
    assert [num_reused(batched, id_) for id_ in jobs] == [0] + [40] * 5
    assert_right_tokens(batched, jobs)


def test_shared_start_is_prefilled_once() -> None:
    batched, jobs = harness(), {id_: job(70 + id_, 5) for id_ in range(4)}
    for id_, submitted in jobs.items():
        batched.submit(id_, submitted)
    batched.run()
    assert batched.recorder.num_tokens("prefill") == 42 + 3 * 2
    assert_right_tokens(batched, jobs)


def test_waits_for_a_prefill_in_chunks() -> None:
    batched = harness(max_batched_tokens=20)
    batched.submit(0, job(70))
    batched.step()
    batched.submit(1, job(71))
    batched.run()
    assert num_reused(batched, 1) == 40
    assert_right_tokens(batched, {0: job(70), 1: job(71)})


@pytest.mark.parametrize(
    ("num_shared", "num_own", "waits"), [(64, 64, True), (64, 66, False), (31, 5, False)]
)
def test_waits_to_save_half_of_a_prefill(num_shared: int, num_own: int, waits: bool) -> None:
    shared = [k % 9 + 1 for k in range(num_shared)]
    waiting = [
        DecodingSequence.first_of(0, make_job([*shared, *[20] * 5], 1)),
        DecodingSequence.first_of(1, make_job([*shared, *[30] * num_own], 1)),
    ]
    plan = plan_admissions(waiting, (), PrefixCache(is_enabled=True), num_slots=2, num_rows=2)
    assert plan.held == ({1} if waits else set())


@pytest.mark.parametrize(("num_steps", "reused"), [(1, [0, 40]), (2, [40, 40])])
def test_others_go_on_if_the_first_is_cancelled(num_steps: int, reused: list[int]) -> None:
    """The chunks that it prefilled are reused if they are long enough."""
    batched = harness(max_batched_tokens=20)
    for id_ in range(3):
        batched.submit(id_, job(70))
    for _ in range(num_steps):
        batched.step()
    batched.worker.cancel(0)
    batched.run()
    assert batched.outcomes[0] == [Outcome.CANCELLED]
    assert [num_reused(batched, id_) for id_ in (1, 2)] == reused
    assert_right_tokens(batched, {1: job(70), 2: job(70)})


@pytest.mark.parametrize("fault", ["poison", "fail"])
def test_others_go_on_if_the_first_fails(fault: str) -> None:
    batched = harness(**{fault: 96})
    jobs = {1: job(71), 2: job(72)}
    batched.submit(0, job(96, 5))
    for id_, submitted in jobs.items():
        batched.submit(id_, submitted)
    batched.run()
    assert batched.outcomes[0] == [Outcome.FAILED]
    assert [num_reused(batched, id_) for id_ in jobs] == [0, 40]
    assert_right_tokens(batched, jobs)


def test_deadline_applies_while_a_prompt_waits() -> None:
    batched = harness(max_batched_tokens=16)
    batched.submit(0, job(70))
    batched.submit(1, replace(job(70), deadline=5.0))
    batched.step()
    batched.clock.now = 6.0
    batched.step()
    assert batched.outcomes[1] == [Outcome.DEADLINE]
    batched.run()
    assert_right_tokens(batched, {0: job(70)})


@pytest.mark.parametrize(("num_slots", "num_running"), [(2, 1), (3, 2)])
def test_waiting_prompt_keeps_its_slot(num_slots: int, num_running: int) -> None:
    """A job of lower priority overtakes it only if a slot is left."""
    batched = harness(num_slots)
    for id_ in (0, 1):
        batched.submit(id_, replace(job(70), priority=1, max_new_tokens=9, eos=frozenset()))
    batched.submit(2, replace(make_job([7, 8], 9), eos=frozenset()))
    batched.step()
    assert batched.worker.stats.num_running == num_running
    batched.run()
    first_tokens = list(dict.fromkeys(update.id for update in batched.updates))
    assert first_tokens.index(1) == num_running


def test_a_job_with_several_outputs_waits_with_all_its_slots() -> None:
    batched = harness(num_slots=4)
    batched.submit(0, replace(job(70), eos=frozenset()))
    batched.submit(1, replace(job(70), num_outputs=3, eos=frozenset()))
    batched.submit(2, replace(make_job([7, 8], 4), eos=frozenset()))
    batched.step()
    assert batched.worker.stats.num_running == 1
    batched.run()
    assert num_reused(batched, 1) == 40
    for output in range(3):
        assert batched.tokens_of(1, output) == reference([*SHARED, 70], 4, eos=-1)


def test_scopes_share_nothing() -> None:
    """Equal prompts of two scopes run together, neither waiting for the other."""
    batched = harness()
    for id_, scope in enumerate(("alice", "bob", "alice", "bob")):
        batched.submit(id_, replace(job(70, scope=scope), max_new_tokens=9, eos=frozenset()))
    batched.step()
    assert batched.worker.stats.num_running == 2
    assert batched.recorder.num_tokens("prefill") == 2 * 41
    batched.run()
    assert batched.recorder.num_tokens("prefill") == 2 * 41
    assert [num_reused(batched, id_) for id_ in range(4)] == [0, 0, 40, 40]
    batched.submit(4, job(70, scope="carol"))
    batched.run()
    assert num_reused(batched, 4) == 0
