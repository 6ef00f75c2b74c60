"""Job updates: one by one for a stream, coalesced for a unary call."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests import job_handle as handles
from server.engine.requests.job import Cost
from server.engine.requests.job_handle import MAX_COALESCED_UPDATES, JobHandle
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


def make_handle(*, coalesce_updates: bool) -> JobHandle:
    return JobHandle(1, 0, 0, Cost(1, 1), coalesce_updates)


@given(
    outputs=st.lists(st.integers(0, 2), max_size=3 * MAX_COALESCED_UPDATES),
    coalesce_updates=st.booleans(),
    has_logprobs=st.booleans(),
)
def test_delivers_every_update(
    outputs: list[int], coalesce_updates: bool, has_logprobs: bool
) -> None:
    handle = make_handle(coalesce_updates=coalesce_updates)
    for number, output in enumerate(outputs):
        logprobs = (TokenLogprob(-number),) if has_logprobs else ()
        update = JobUpdate(7, (number, -number), output=output, logprobs=logprobs)
        assert not handle.push(update, float(number))
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
        token_times = [seconds for update in output_updates for seconds in update.token_times]
        expected = [float(number) for number in numbers for _ in range(2)]
        assert token_times == ([*expected, 1e6] if coalesce_updates else [])
    num_batches = -(-(len(outputs) + 3) // MAX_COALESCED_UPDATES)
    assert len(updates) <= 3 * num_batches if coalesce_updates else len(updates) == len(outputs) + 3


@pytest.mark.parametrize("coalesce_updates", [False, True])
def test_cancels_a_slow_reader_once(
    monkeypatch: pytest.MonkeyPatch, *, coalesce_updates: bool
) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 10 * MAX_COALESCED_UPDATES)
    handle = make_handle(coalesce_updates=coalesce_updates)
    cancel_requested = [
        handle.push(JobUpdate(7, (1, 2, 3, 4)), 0.0) for _ in range(3 * MAX_COALESCED_UPDATES)
    ]
    assert cancel_requested.count(True) == 1, "the engine cancels it once"
    with pytest.raises(OverloadedError, match="slowly"):
        read_all(handle)


@pytest.mark.parametrize("coalesce_updates", [False, True])
def test_never_cancels_a_reader_that_keeps_up(
    monkeypatch: pytest.MonkeyPatch, *, coalesce_updates: bool
) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 10 * MAX_COALESCED_UPDATES)

    async def push_and_read() -> None:
        handle = make_handle(coalesce_updates=coalesce_updates)
        for _ in range(20):
            for _ in range(MAX_COALESCED_UPDATES):
                assert not handle.push(JobUpdate(7, (1,)), 0.0)
            for _ in range(1 if coalesce_updates else MAX_COALESCED_UPDATES):
                await handle.next()

    asyncio.run(push_and_read())


def test_delivers_queued_updates_before_engine_failure() -> None:
    handle = make_handle(coalesce_updates=False)
    handle.push(JobUpdate(7, (1,)), 0.0)
    handle.close()
    assert asyncio.run(handle.next()).tokens == (1,)
    with pytest.raises(EngineStoppedError):
        asyncio.run(handle.next())
