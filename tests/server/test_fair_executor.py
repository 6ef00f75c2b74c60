"""Slices of blocking work: fair among clients, bounded, cancellable."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from server.errors import DeadlineError, Limit, OverloadedError
from server.service.caller import Caller
from server.service.threads import (
    ITEM_COST,
    MAX_SLICE_COST,
    MAX_WAITING_COST,
    FairExecutor,
    Slice,
    slices_of,
)


def caller(client: str = "", deadline: float | None = None) -> Caller:
    return Caller(client, deadline)


@asynccontextmanager
async def blocked(
    num_threads: int = 1, max_waiting: int = 100
) -> AsyncIterator[tuple[FairExecutor, threading.Event]]:
    """An executor whose threads wait for an event, which is set at the end of the block."""
    release = threading.Event()
    with ThreadPoolExecutor(num_threads) as pool:
        threads = FairExecutor(pool, num_threads, max_waiting)
        blockers = [
            asyncio.create_task(threads.run([Slice(1, release.wait)], caller(f"blocker {index}")))
            for index in range(num_threads)
        ]
        await asyncio.sleep(0)
        try:
            yield threads, release
        finally:
            release.set()
            await asyncio.gather(*blockers)


def recorder(done: list[str]) -> Callable[[str, int, int], list[Slice[None]]]:
    """Makes ``count`` slices of ``cost`` each, which append a name to ``done``."""
    return lambda name, count, cost: [Slice(cost, lambda: done.append(name))] * count


async def test_clients_take_turns_whatever_the_number_of_their_calls() -> None:
    done: list[str] = []
    slices = recorder(done)
    async with blocked() as (threads, release):
        calls = [("greedy", 4)] * 3 + [("modest", 2)]
        tasks = [
            asyncio.create_task(threads.run(slices(name, count, 100), caller(name)))
            for name, count in calls
        ]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*tasks)
    assert done.index("modest") <= 1
    assert "modest" in done[done.index("modest") + 1 :][:2]


async def test_a_short_call_overtakes_the_long_calls_of_its_own_client() -> None:
    done: list[str] = []
    slices = recorder(done)
    async with blocked() as (threads, release):
        long = asyncio.create_task(threads.run(slices("long", 5, MAX_SLICE_COST), caller()))
        await asyncio.sleep(0)
        release.set()
        while not done:
            await asyncio.sleep(0)
        await threads.run(slices("short", 1, 10), caller())
        overtaken = 5 - done.count("long")
        await long
    assert overtaken >= 2


async def test_a_text_that_cannot_be_split_leaves_a_thread_free() -> None:
    done: list[str] = []
    release = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        threads = FairExecutor(pool, 2, 100)
        long = [
            asyncio.create_task(
                threads.run([Slice(MAX_SLICE_COST + 1, release.wait)], caller(name))
            )
            for name in ("a", "b")
        ]
        await asyncio.sleep(0)
        await threads.run(recorder(done)("short", 3, 10), caller("c"))
        assert done == ["short"] * 3
        assert not any(task.done() for task in long)
        release.set()
        assert await asyncio.gather(*long) == [[True], [True]]


async def test_drops_the_rest_of_a_cancelled_or_expired_call() -> None:
    done: list[str] = []
    slices = recorder(done)
    async with blocked() as (threads, release):
        abandoned = asyncio.create_task(threads.run(slices("left", 3, 10), caller()))
        deadline = time.monotonic() + 0.01
        expired = asyncio.create_task(threads.run(slices("late", 3, 10), caller("", deadline)))
        await asyncio.sleep(0)
        abandoned.cancel()
        while time.monotonic() <= deadline:
            await asyncio.sleep(0)
        release.set()
        with pytest.raises(DeadlineError):
            await expired
        await threads.run(slices("in time", 1, 10), caller("", time.monotonic() + 60))
    assert done == ["in time"]


@pytest.mark.parametrize(
    ("num_calls", "cost"), [(2, 10), (1, MAX_WAITING_COST // 2)], ids=["calls", "cost"]
)
async def test_one_client_cannot_use_up_the_limits(num_calls: int, cost: int) -> None:
    done: list[str] = []
    slices = recorder(done)
    async with blocked(max_waiting=3) as (threads, release):
        flood = [
            asyncio.create_task(threads.run(slices("flood", 1, cost), caller("flood")))
            for _ in range(num_calls)
        ]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError) as caught:
            await threads.run(slices("more", 1, cost), caller("flood"))
        assert caught.value.limit == Limit.THREADS
        other = asyncio.create_task(threads.run(slices("other", 1, 10), caller("other")))
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(other, *flood)
    assert sorted(done) == ["flood"] * num_calls + ["other"]


async def test_an_error_ends_its_call_only() -> None:
    done: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        threads = FairExecutor(pool, 1, 10)
        failing = [Slice(10, lambda: done.remove("nothing")), *recorder(done)("after", 1, 10)]
        with pytest.raises(ValueError, match="not in list"):
            await threads.run(failing, caller())
        await threads.run(recorder(done)("other", 1, 10), caller())
    assert done == ["other"]


def test_slices_cover_all_items_and_stay_within_their_size() -> None:
    costs = [1, MAX_SLICE_COST, 5, *[1000] * 100, 3 * MAX_SLICE_COST, 7]
    slices = slices_of(costs, lambda start, stop: list(range(start, stop)))
    parts = [part.function() for part in slices]
    assert [index for part in parts for index in part] == list(range(len(costs)))
    for part, indices in zip(slices, parts, strict=True):
        assert part.cost == sum(costs[i] + ITEM_COST for i in indices)
        assert part.cost <= MAX_SLICE_COST or len(indices) == 1
    assert slices_of([], range) == []
