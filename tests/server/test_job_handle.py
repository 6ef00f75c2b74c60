"""Job updates: one by one, joined while many sequences stream, or joined for a unary call."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests import job_handle as handles
from server.engine.requests.job import Cost
from server.engine.requests.job_handle import (
    JOIN_SECONDS,
    MAX_JOINED_UPDATES,
    Delivery,
    JobHandle,
)
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import Completion, JobUpdate
from server.errors import EngineStoppedError, OverloadedError

COMPLETION = Completion(
    outcome=Outcome.STOP,
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
    failure="",
    num_reused_tokens=0,
)


def read_all(handle: JobHandle) -> list[JobUpdate]:
    """Reads all updates, up to and including the last one."""

    async def collect() -> list[JobUpdate]:
        updates = [await handle.next()]
        while not updates[-1].is_last:
            updates.append(await handle.next())
        return updates

    return asyncio.run(collect())


def make_handle(delivery: Delivery) -> JobHandle:
    return JobHandle(1, 0, 0, Cost(1, 1), delivery)


@given(
    outputs=st.lists(st.integers(0, 2), max_size=3 * MAX_JOINED_UPDATES),
    delivery=st.sampled_from(Delivery),
    seconds_between=st.sampled_from([0.3 * JOIN_SECONDS, JOIN_SECONDS, 1.0]),
    busy=st.lists(st.booleans(), min_size=1),
    has_logprobs=st.booleans(),
)
def test_delivers_every_update(
    outputs: list[int],
    delivery: Delivery,
    seconds_between: float,
    busy: list[bool],
    has_logprobs: bool,
) -> None:
    handle = make_handle(delivery)
    for number, output in enumerate(outputs):
        logprobs = (TokenLogprob(-number),) if has_logprobs else ()
        update = JobUpdate(7, (number, -number), output=output, logprobs=logprobs)
        now = number * seconds_between
        assert not handle.push(update, now, is_busy=busy[number % len(busy)])
    for output in (2, 1, 0):
        handle.push(
            JobUpdate(7, (99,), completion=COMPLETION, output=output, has_more=output > 0), 1e6
        )
    updates = read_all(handle)
    for output in range(3):
        output_updates = [update for update in updates if update.output == output]
        numbers = [number for number, target in enumerate(outputs) if target == output]
        tokens = [token for number in numbers for token in (number, -number)]
        assert [token for update in output_updates for token in update.tokens] == [*tokens, 99]
        values = [row.logprob for update in output_updates for row in update.logprobs]
        assert values == ([-number for number in numbers] if has_logprobs else [])
        assert [
            update.completion for update in output_updates if update.completion is not None
        ] == [COMPLETION]
        assert output_updates[-1].completion is COMPLETION
        for update in output_updates:
            assert len(update.token_times) in ({0, len(update.tokens)})
            assert update.token_times or delivery != Delivery.WHOLE
        expected = [number * seconds_between for number in numbers for _ in range(2)] + [1e6]
        times = [update.token_times or (None,) * len(update.tokens) for update in output_updates]
        for seconds, own in zip((time for row in times for time in row), expected, strict=True):
            assert seconds in {None, own}
    num_batches = -(-(len(outputs) + 3) // MAX_JOINED_UPDATES)
    if delivery == Delivery.WHOLE:
        assert len(updates) <= 3 * num_batches
    elif delivery == Delivery.EACH or not any(busy) or seconds_between > JOIN_SECONDS:
        assert len(updates) == len(outputs) + 3


def test_joins_the_tokens_of_a_stream_while_many_stream() -> None:
    handle = make_handle(Delivery.STREAM)
    step = 0.3 * JOIN_SECONDS
    for number in range(9):
        handle.push(JobUpdate(7, (number,)), number * step, is_busy=True)
    handle.push(JobUpdate(7, (9,)), 9 * step, is_busy=False)
    handle.push(JobUpdate(7, (10,), completion=COMPLETION), 9.1 * step, is_busy=True)
    sent = [update.tokens for update in read_all(handle)]
    assert sent == [(0,), (1, 2, 3, 4), (5, 6, 7, 8), (9,), (10,)]


def test_sends_what_a_stream_held_once_few_stream() -> None:
    handle = make_handle(Delivery.STREAM)
    for number in range(3):
        handle.push(JobUpdate(7, (number,)), 1e-3 * number, is_busy=number < 2)
    assert [asyncio.run(handle.next()).tokens for _ in range(2)] == [(0,), (1, 2)]


@pytest.mark.parametrize("delivery", Delivery)
def test_cancels_a_slow_reader_once(monkeypatch: pytest.MonkeyPatch, delivery: Delivery) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 10 * MAX_JOINED_UPDATES)
    handle = make_handle(delivery)
    cancel_requested = [
        handle.push(JobUpdate(7, (1, 2, 3, 4)), 0.0) for _ in range(3 * MAX_JOINED_UPDATES)
    ]
    assert cancel_requested.count(True) == 1, "the engine cancels it once"
    with pytest.raises(OverloadedError, match="slowly"):
        read_all(handle)


@pytest.mark.parametrize("delivery", Delivery)
def test_never_cancels_a_reader_that_keeps_up(
    monkeypatch: pytest.MonkeyPatch, delivery: Delivery
) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 10 * MAX_JOINED_UPDATES)

    async def push_and_read() -> None:
        handle = make_handle(delivery)
        for _ in range(20):
            for _ in range(MAX_JOINED_UPDATES):
                assert not handle.push(JobUpdate(7, (1,)), 0.0)
            for _ in range(1 if delivery == Delivery.WHOLE else MAX_JOINED_UPDATES):
                await handle.next()

    asyncio.run(push_and_read())


def test_delivers_queued_updates_before_engine_failure() -> None:
    handle = make_handle(Delivery.EACH)
    handle.push(JobUpdate(7, (1,)), 0.0)
    handle.close()
    assert asyncio.run(handle.next()).tokens == (1,)
    with pytest.raises(EngineStoppedError):
        asyncio.run(handle.next())
