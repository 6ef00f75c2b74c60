"""Admission control: exact counts, rate limits, and rejection of requests that would time out."""

import asyncio

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from server.engine.engine import Engine
from server.engine.observer import Unobserved
from server.engine.requests.admission import (
    MAX_RETRY_SECONDS,
    MIN_RETRY_SECONDS,
    Admission,
    AdmissionLimits,
    ClientBuckets,
    ClientRate,
)
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import Cost
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import Completion
from server.errors import (
    InvalidArgumentError,
    Limit,
    OverloadedError,
    ShuttingDownError,
)
from tests.server.worker_harness import make_harness, make_job

LIMITS = AdmissionLimits(max_accepted=Cost(6, 100), max_running=Cost(2, 80))
SECOND = 1_000_000_000
costs = st.builds(Cost, st.integers(1, 8), st.integers(1, 130))


def ended(seconds: float) -> Completion:
    return Completion(Outcome.STOP, 0.0, seconds / 4, 3 * seconds / 4)


@given(st.lists(st.tuples(costs, st.booleans()), max_size=60))
def test_counts_stay_within_limits_and_return_to_zero(requests) -> None:
    admission = Admission("m", LIMITS)
    running: dict[int, Cost] = {}
    for id_, (cost, ends_one) in enumerate(requests):
        fits = (
            admission.accepted.num_sequences + cost.num_sequences <= 6
            and admission.accepted.num_tokens + cost.num_tokens <= 100
        )
        if cost.num_sequences > 6 or cost.num_tokens > 100:
            with pytest.raises(InvalidArgumentError):
                admission.check(cost, 0.0)
        elif fits:
            admission.check(cost, 0.0)
            admission.accept(id_, cost, 0.0)
            running[id_] = cost
        else:
            with pytest.raises(OverloadedError) as caught:
                admission.check(cost, 0.0)
            assert caught.value.limit in {Limit.QUEUE_ROWS, Limit.QUEUE_TOKENS}
            assert MIN_RETRY_SECONDS <= caught.value.retry_seconds <= MAX_RETRY_SECONDS
        if ends_one and running:
            first = next(iter(running))
            admission.release(first, running.pop(first), ended(1.0), 1.0)
        assert admission.accepted == sum(running.values(), Cost(0, 0))
    for id_, cost in running.items():
        admission.release(id_, cost, None, 1.0)
    assert admission.accepted == Cost(0, 0)


def test_overload_error_names_the_limit() -> None:
    admission = Admission("m", LIMITS)
    admission.accept(0, Cost(5, 10), 0.0)
    with pytest.raises(OverloadedError, match="no more requests") as rows:
        admission.check(Cost(2, 10), 0.0)
    assert rows.value.limit == Limit.QUEUE_ROWS
    with pytest.raises(OverloadedError, match="no more tokens") as tokens:
        admission.check(Cost(1, 91), 0.0)
    assert tokens.value.limit == Limit.QUEUE_TOKENS


@pytest.mark.parametrize(
    ("cost", "field"),
    [
        (Cost(7, 10), "inputs"),
        (Cost(1, 101), "inputs"),
        (Cost(1, 101, 60), "max_new_tokens"),
    ],
)
def test_too_large_request_error_names_the_field(cost: Cost, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Admission("m", LIMITS).check(cost, 0.0)
    assert caught.value.field == field


def test_rejects_requests_that_would_miss_their_deadline() -> None:
    """Two jobs run, 4 s each, since 0 and 2 s, and two wait: the fifth starts at 8 s."""
    admission = Admission("m", LIMITS)
    cost = Cost(1, 1)
    admission.check(cost, 0.0, 0.001)  # no estimate before the first job ends
    admission.accept(0, cost, -4.0)
    admission.release(0, cost, ended(4.0), 0.0)
    admission.check(cost, 0.0, 0.001)  # the queue is empty
    for id_, arrival in enumerate((0.0, 2.0, 2.0, 3.0), 1):
        admission.accept(id_, cost, arrival)
    assert admission.wait_seconds(cost, 3.0) == pytest.approx(5.0)
    assert admission.wait_seconds(Cost(2, 2), 3.0) == pytest.approx(7.0)
    admission.check(cost, 3.0, 6.5)
    admission.check(cost, 3.0)
    with pytest.raises(OverloadedError) as caught:
        admission.check(cost, 3.0, 5.5)
    assert caught.value.limit == Limit.DEADLINE
    assert "about 6.0 s long" in str(caught.value)
    admission.release(1, cost, None, 3.5)  # cancelled: the third starts, and ends at 7.5 s
    assert admission.wait_seconds(cost, 3.5) == pytest.approx(4.0)


def test_wait_estimate_ignores_failed_jobs() -> None:
    admission = Admission("m", LIMITS)
    for id_, outcome in enumerate((Outcome.FAILED, Outcome.CANCELLED, Outcome.DEADLINE)):
        admission.accept(id_, Cost(1, 1), 0.0)
        admission.release(id_, Cost(1, 1), Completion(outcome, 0.0, 9.0, 9.0), 18.0)
    for id_ in range(5):
        admission.accept(id_, Cost(1, 1), 18.0)
    assert admission.wait_seconds(Cost(1, 1), 18.0) == 0.0


@given(costs, costs)
def test_bulk_work_uses_at_most_three_quarters_of_capacity(before: Cost, cost: Cost) -> None:
    """Bulk work gets 4 of 6 sequences and 75 of 100 tokens, and all if the model is idle."""
    admission = Admission("m", LIMITS)
    admission.accept(0, before, 0.0)
    after = before + cost
    assume(cost.num_sequences <= 6 and cost.num_tokens <= 100)
    if after.num_sequences > 4 or after.num_tokens > 75:
        with pytest.raises(OverloadedError):
            admission.check(cost, 0.0, is_bulk=True)
    else:
        admission.check(cost, 0.0, is_bulk=True)
    admission.release(0, before, None, 0.0)
    admission.check(cost, 0.0, is_bulk=True)
    assert admission.accepted == Cost(0, 0), "a check changes nothing"


@given(
    per_second=st.integers(1, 50),
    burst=st.integers(1, 200),
    requests=st.lists(st.tuples(st.integers(1, 250), st.integers(0, 3 * SECOND)), max_size=60),
)
def test_client_never_exceeds_its_burst_and_rate(per_second, burst, requests) -> None:
    buckets = ClientBuckets(ClientRate(per_second, burst))
    now, spent = 0, 0
    for num_tokens, pause in requests:
        now += pause
        cost = Cost(1, num_tokens)
        try:
            buckets.check("a", cost, now)
        except InvalidArgumentError:
            assert num_tokens > burst
            continue
        except OverloadedError as error:
            later = now + round(error.retry_seconds * SECOND) + 1000
            buckets.check("a", cost, later)  # the reported delay suffices
            continue
        buckets.spend("a", cost, now)
        spent += num_tokens
        assert spent <= burst + per_second * now / SECOND + 1e-6 * len(requests)
        buckets.check("b", Cost(1, burst), now)  # another client has its own bucket


def test_evicts_the_oldest_client_buckets() -> None:
    buckets = ClientBuckets(ClientRate(1, 10, max_clients=3))
    for client in "abcde":
        buckets.spend(client, Cost(1, 10), 0)
    assert len(buckets) == 3
    buckets.check("a", Cost(1, 10), 0)
    with pytest.raises(OverloadedError) as caught:
        buckets.check("e", Cost(1, 10), 0)
    assert caught.value.retry_seconds == pytest.approx(10.0)


async def test_full_engine_rejects_requests_before_any_work() -> None:
    loop = asyncio.get_running_loop()
    died: asyncio.Future[BaseException] = loop.create_future()
    engine = Engine(1, Unobserved(), BusyLanes(), 4, died.set_result)
    engine.add(
        "fake", [make_harness(num_slots=2).worker], AdmissionLimits(Cost(2, 1000), Cost(2, 1000))
    )
    engine.check("fake", 2)
    with pytest.raises(InvalidArgumentError):
        engine.check("fake", 3)
    handles = engine.submit("fake", [make_job([5], 9), make_job([6], 9)])
    with pytest.raises(OverloadedError):
        engine.check("fake", 1)
    for handle in handles:
        while not (await handle.next()).is_last:
            pass
    engine.check("fake", 2)
    engine.stop()
    with pytest.raises(ShuttingDownError):
        engine.check("fake", 1)
