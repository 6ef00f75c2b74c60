"""What is accepted: counts that add up, clients that wait, callers who would wait in vain."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

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
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import Completion, Cost
from server.errors import (
    DeadlineError,
    Limit,
    OverloadedError,
    RequestTooLargeError,
    ShuttingDownError,
)
from server.frontends.grpc.status import field_of
from server.service.threads import Threads
from tests.server.generating import bench, job

ROOM = AdmissionLimits(most=Cost(6, 100), parallel=Cost(2, 80))
SECOND = 1_000_000_000
costs = st.builds(Cost, st.integers(1, 8), st.integers(1, 130))


def ended(seconds: float) -> Completion:
    return Completion(Outcome.STOP, 0.0, seconds / 4, 3 * seconds / 4)


@given(st.lists(st.tuples(costs, st.booleans()), max_size=60))
def test_counts_never_pass_the_bounds_and_return_to_zero(requests) -> None:
    admission, running = Admission("m", ROOM), []
    for cost, ends_one in requests:
        fits = (
            admission.accepted.num_rows + cost.num_rows <= 6
            and admission.accepted.num_tokens + cost.num_tokens <= 100
        )
        if cost.num_rows > 6 or cost.num_tokens > 100:
            with pytest.raises(RequestTooLargeError):
                admission.check(cost)
        elif fits:
            admission.check(cost)
            admission.take(cost)
            running.append(cost)
        else:
            with pytest.raises(OverloadedError) as caught:
                admission.check(cost)
            assert caught.value.limit in {Limit.QUEUE_ROWS, Limit.QUEUE_TOKENS}
            assert MIN_RETRY_SECONDS <= caught.value.retry_seconds <= MAX_RETRY_SECONDS
        if ends_one and running:
            admission.give_back(running.pop(0), ended(1.0))
        assert admission.accepted == sum(running, Cost(0, 0))
    for cost in running:
        admission.give_back(cost)
    assert admission.accepted == Cost(0, 0)


def test_the_limit_that_was_reached_is_named() -> None:
    admission = Admission("m", ROOM)
    admission.take(Cost(5, 10))
    with pytest.raises(OverloadedError, match="no more requests") as rows:
        admission.check(Cost(2, 10))
    assert rows.value.limit == Limit.QUEUE_ROWS
    with pytest.raises(OverloadedError, match="no more tokens") as tokens:
        admission.check(Cost(1, 91))
    assert tokens.value.limit == Limit.QUEUE_TOKENS


@pytest.mark.parametrize(
    ("cost", "field"),
    [
        (Cost(7, 10), "inputs"),
        (Cost(1, 101), "inputs"),
        (Cost(1, 101, 60), "max_new_tokens"),
    ],
)
def test_what_never_fits_is_refused_by_its_field(cost: Cost, field: str) -> None:
    with pytest.raises(RequestTooLargeError) as caught:
        Admission("m", ROOM).check(cost)
    assert field_of(caught.value) == field


def test_who_would_wait_in_vain_is_refused_early() -> None:
    """Two run at a time, 4 s each; two more wait: the fifth waits for about 6 s, and runs."""
    admission = Admission("m", ROOM)
    one = Cost(1, 1)
    admission.check(one, 0.001)  # nothing is known yet
    admission.take(one)
    admission.give_back(one, ended(4.0))
    admission.check(one, 0.001)  # nothing is before it
    for _ in range(4):
        admission.take(one)
    assert admission.wait_seconds(one) == pytest.approx(6.0)
    admission.check(one, 7.5)
    admission.check(one)
    with pytest.raises(OverloadedError) as caught:
        admission.check(one, 6.5)
    assert caught.value.limit == Limit.DEADLINE
    assert "about 7.0 s long" in str(caught.value)


def test_what_failed_teaches_nothing() -> None:
    admission = Admission("m", ROOM)
    for outcome in (Outcome.FAILED, Outcome.CANCELLED, Outcome.DEADLINE):
        admission.take(Cost(1, 1))
        admission.give_back(Cost(1, 1), Completion(outcome, 0.0, 9.0, 9.0))
    for _ in range(5):
        admission.take(Cost(1, 1))
    assert admission.wait_seconds(Cost(1, 1)) == 0.0


@given(costs, costs)
def test_bulk_work_leaves_others_a_quarter(before: Cost, cost: Cost) -> None:
    """6 rows and 100 tokens are 4 and 75 for it, unless nothing else is there."""
    admission = Admission("m", ROOM)
    admission.take(before)
    after = before + cost
    assume(cost.num_rows <= 6 and cost.num_tokens <= 100)
    if after.num_rows > 4 or after.num_tokens > 75:
        with pytest.raises(OverloadedError):
            admission.check(cost, is_bulk=True)
    else:
        admission.check(cost, is_bulk=True)
    admission.give_back(before)
    admission.check(cost, is_bulk=True)


@given(
    per_second=st.integers(1, 50),
    burst=st.integers(1, 200),
    requests=st.lists(st.tuples(st.integers(1, 250), st.integers(0, 3 * SECOND)), max_size=60),
)
def test_a_client_never_gets_more_than_its_burst_and_rate(per_second, burst, requests) -> None:
    buckets = ClientBuckets(ClientRate(per_second, burst))
    now, spent = 0, 0
    for num_tokens, pause in requests:
        now += pause
        cost = Cost(1, num_tokens)
        try:
            buckets.check("a", cost, now)
        except RequestTooLargeError:
            assert num_tokens > burst
            continue
        except OverloadedError as error:
            later = now + round(error.retry_seconds * SECOND) + 1000
            buckets.check("a", cost, later)  # the delay that is told suffices
            continue
        buckets.take("a", cost, now)
        spent += num_tokens
        assert spent <= burst + per_second * now / SECOND + 1e-6 * len(requests)
        buckets.check("b", Cost(1, burst), now)  # another client is not concerned


def test_clients_are_remembered_up_to_a_bound() -> None:
    buckets = ClientBuckets(ClientRate(1, 10, max_clients=3))
    for client in "abcde":
        buckets.take(client, Cost(1, 10), 0)
    assert len(buckets) == 3
    buckets.check("a", Cost(1, 10), 0)
    with pytest.raises(OverloadedError) as caught:
        buckets.check("e", Cost(1, 10), 0)
    assert caught.value.retry_seconds == pytest.approx(10.0)


async def test_an_engine_that_is_full_says_so_before_any_work() -> None:
    loop = asyncio.get_running_loop()
    died: asyncio.Future[BaseException] = loop.create_future()
    engine = Engine(1, Unobserved(), BusyLanes(), 4, died.set_result)
    engine.add(
        "fake", [bench(num_slots=2).generator], AdmissionLimits(Cost(2, 1000), Cost(2, 1000))
    )
    engine.check("fake", 2)
    with pytest.raises(RequestTooLargeError):
        engine.check("fake", 3)
    tickets = engine.submit("fake", [job([5], 9), job([6], 9)])
    with pytest.raises(OverloadedError):
        engine.check("fake", 1)
    for ticket in tickets:
        while not (await ticket.next()).is_last:
            pass
    engine.check("fake", 2)
    engine.stop()
    with pytest.raises(ShuttingDownError):
        engine.check("fake", 1)


async def test_nothing_is_tokenized_for_those_who_left_or_are_too_late() -> None:
    begun: list[str] = []
    free = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        threads = Threads(pool, max_waiting=3)
        loop = asyncio.get_running_loop()
        holds = loop.create_task(threads.run_bounded(free.wait, None))
        left = loop.create_task(threads.run_bounded(lambda: begun.append("left"), None))
        late_at = time.monotonic() + 0.01
        late = loop.create_task(threads.run_bounded(lambda: begun.append("late"), late_at))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError) as caught:
            await threads.run_bounded(lambda: begun.append("too many"), None)
        assert caught.value.limit == Limit.THREADS
        left.cancel()
        while time.monotonic() <= late_at:
            await asyncio.sleep(0)
        free.set()
        with pytest.raises(DeadlineError):
            await late
        await holds
        await threads.run_bounded(lambda: begun.append("in time"), time.monotonic() + 60)
    assert begun == ["in time"]
