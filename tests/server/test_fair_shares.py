"""Two clients of whom one floods: equal shares of the slots and places in the queue."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.requests.admission import Admission, AdmissionLimits
from server.engine.requests.job import Cost
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import Completion
from server.engine.requests.waiting_queue import WaitingQueue
from server.errors import Limit, OverloadedError
from tests.server.worker_harness import make_harness, make_job


def sequence(id_: int, client: str, num_tokens: int, priority: int = 0) -> DecodingSequence:
    job = replace(make_job([5], num_tokens - 1), client=client, priority=priority)
    return DecodingSequence.first_of(id_, job)


def test_polite_client_gets_half_of_the_slots() -> None:
    harness = make_harness(num_slots=4)
    for id_ in range(100):
        harness.submit(id_, replace(make_job([5], 10), client="flood", eos=frozenset()))
    for _ in range(5):
        harness.step()
    for id_ in range(100, 110):
        harness.submit(id_, replace(make_job([6], 10), client="polite", eos=frozenset()))
    while sum(id_ >= 100 for id_ in harness.outcomes) < 10:
        harness.step()
    assert sum(id_ < 100 for id_ in harness.outcomes) <= 10 + 2 * 4, "one each in turn"


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.sampled_from(["add", "admit"])),
        max_size=60,
    )
)
def test_queue_is_fair_by_tokens_and_first_come_per_client(events) -> None:
    queue, waiting = WaitingQueue(), {}
    for id_, (client, num_tokens, event) in enumerate(events):
        if event == "add":
            queue.add(sequence(id_, client, num_tokens), float(id_))
            waiting[id_] = client
        elif waiting:
            first = queue.items[0].id
            assert first == min(i for i, of in waiting.items() if of == waiting[first])
            assert queue.admit(first).id == first
            del waiting[first]
        assert {item.id for item in queue.items} == waiting.keys()
    assert len(queue) == len(waiting)
    served = dict.fromkeys("ab", 0)
    backlog = WaitingQueue()
    for id_ in range(40):
        backlog.add(sequence(id_, "ab"[id_ % 2], 10 if id_ % 2 else 30), 0.0)
    for _ in range(20):
        item = backlog.admit(backlog.items[0].id)
        served[item.job.client] += item.job.cost.num_tokens
        assert abs(served["a"] - served["b"]) <= 30


def test_idle_client_saves_no_credit_and_pays_for_what_it_got() -> None:
    queue = WaitingQueue()
    for id_ in range(10):
        queue.add(sequence(id_, "a", 10), 0.0)
    for _ in range(5):
        queue.admit(queue.items[0].id)
    queue.add(sequence(20, "b", 10), 1.0)
    queue.add(sequence(21, "b", 10), 1.0)
    order = [item.job.client for item in queue.items]
    assert order[:4] in (["b", "a", "b", "a"], ["a", "b", "a", "b"])
    assert queue.discard(20)
    assert not queue.discard(20)


def test_flood_leaves_places_to_other_clients() -> None:
    limits = AdmissionLimits(Cost(16, 1000), Cost(4, 1000))
    admission, cost = Admission("m", limits), Cost(1, 1)
    for id_ in range(16):  # alone, a client may use all
        admission.check(cost, 0.0, client="flood")
        admission.accept(id_, cost, 0.0, "flood")
    with pytest.raises(OverloadedError):
        admission.check(cost, 1.0, client="polite")
    for id_ in range(6):
        admission.release(id_, cost, None, 2.0)
    with pytest.raises(OverloadedError, match="others wait") as caught:
        admission.check(cost, 2.0, client="flood")
    assert caught.value.limit == Limit.CLIENT_SHARE
    for id_ in range(20, 26):
        admission.check(cost, 2.0, client="polite")
        admission.accept(id_, cost, 2.0, "polite")
    with pytest.raises(OverloadedError, match="no more requests"):
        admission.check(cost, 2.0, client="polite")
    for id_ in (*range(6, 16), *range(20, 26)):
        admission.release(id_, cost, None, 3.0)
    for id_ in range(30, 40):  # refused at 2 s, it counts until 12 s
        admission.check(cost, 11.0, client="flood")
        admission.accept(id_, cost, 11.0, "flood")
    with pytest.raises(OverloadedError):
        admission.check(cost, 11.0, client="flood")
    admission.check(cost, 13.0, client="flood")


def test_flood_does_not_lengthen_the_estimate_of_others() -> None:
    limits = AdmissionLimits(Cost(50, 1000), Cost(2, 1000))
    admission, cost = Admission("m", limits), Cost(1, 1)
    admission.accept(0, cost, 0.0, "flood")
    completion = Completion(Outcome.STOP, 0.0, 1.0, 3.0)
    admission.release(0, cost, completion, 4.0)
    for id_ in range(1, 21):
        admission.accept(id_, cost, 4.0, "flood")
    assert admission.wait_seconds(cost, 5.0, "flood") == pytest.approx(39.0)
    assert admission.wait_seconds(cost, 5.0, "polite") == pytest.approx(3.0)
