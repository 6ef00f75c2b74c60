"""Updates of a job: one by one for a stream, coalesced for a unary call."""

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

END = Completion(
    outcome=Outcome.STOP,
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
    failure="",
    num_reused_tokens=0,
)


def read(handle: JobHandle) -> list[JobUpdate]:
    """All updates up to the last."""

    async def every() -> list[JobUpdate]:
        found = [await handle.next()]
        while not found[-1].is_last:
            found.append(await handle.next())
        return found

    return asyncio.run(every())


def make(*, coalesce_updates: bool) -> JobHandle:
    return JobHandle(1, 0, 0, Cost(1, 1), coalesce_updates)


@given(
    outputs=st.lists(st.integers(0, 2), max_size=3 * MAX_COALESCED_UPDATES),
    coalesce_updates=st.booleans(),
    has_logprobs=st.booleans(),
)
def test_no_update_is_lost(outputs: list[int], coalesce_updates: bool, has_logprobs: bool) -> None:
    handle = make(coalesce_updates=coalesce_updates)
    for number, output in enumerate(outputs):
        logprobs = (TokenLogprob(-number),) if has_logprobs else ()
        update = JobUpdate(7, (number, -number), output=output, logprobs=logprobs)
        assert not handle.push(update, float(number))
    for output in (2, 1, 0):
        handle.push(JobUpdate(7, (99,), completion=END, output=output, has_more=output > 0), 1e6)
    updates = read(handle)
    for output in range(3):
        mine = [update for update in updates if update.output == output]
        numbers = [number for number, of in enumerate(outputs) if of == output]
        tokens = [token for number in numbers for token in (number, -number)]
        assert [token for part in mine for token in part.tokens] == [*tokens, 99]
        values = [row.logprob for part in mine for row in part.logprobs]
        assert values == ([-number for number in numbers] if has_logprobs else [])
        assert [part.completion for part in mine if part.completion is not None] == [END]
        assert mine[-1].completion is END
        token_times = [moment for part in mine for moment in part.token_times]
        expected = [float(number) for number in numbers for _ in range(2)]
        assert token_times == ([*expected, 1e6] if coalesce_updates else [])
    portions = -(-(len(outputs) + 3) // MAX_COALESCED_UPDATES)
    assert len(updates) <= 3 * portions if coalesce_updates else len(updates) == len(outputs) + 3


@pytest.mark.parametrize("coalesce_updates", [False, True])
def test_a_slow_reader_is_cancelled_once(
    monkeypatch: pytest.MonkeyPatch, *, coalesce_updates: bool
) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 10 * MAX_COALESCED_UPDATES)
    handle = make(coalesce_updates=coalesce_updates)
    wanted = [
        handle.push(JobUpdate(7, (1, 2, 3, 4)), 0.0) for _ in range(3 * MAX_COALESCED_UPDATES)
    ]
    assert wanted.count(True) == 1, "the engine cancels it once"
    with pytest.raises(OverloadedError, match="slowly"):
        read(handle)


@pytest.mark.parametrize("coalesce_updates", [False, True])
def test_a_reader_that_keeps_up_is_never_cancelled(
    monkeypatch: pytest.MonkeyPatch, *, coalesce_updates: bool
) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 10 * MAX_COALESCED_UPDATES)

    async def talk() -> None:
        handle = make(coalesce_updates=coalesce_updates)
        for _ in range(20):
            for _ in range(MAX_COALESCED_UPDATES):
                assert not handle.push(JobUpdate(7, (1,)), 0.0)
            for _ in range(1 if coalesce_updates else MAX_COALESCED_UPDATES):
                await handle.next()

    asyncio.run(talk())


def test_queued_updates_arrive_before_the_end_of_the_engine() -> None:
    handle = make(coalesce_updates=False)
    handle.push(JobUpdate(7, (1,)), 0.0)
    handle.close()
    assert asyncio.run(handle.next()).tokens == (1,)
    with pytest.raises(EngineStoppedError):
        asyncio.run(handle.next())
