"""The queue of a job's updates, and readers that are too slow."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests import job_handle as handles
from server.engine.requests.job import Cost
from server.engine.requests.job_handle import JobHandle
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


def make_handle() -> JobHandle:
    return JobHandle(1, 0, 0, Cost(1, 1))


@given(outputs=st.lists(st.integers(0, 2), max_size=100), has_logprobs=st.booleans())
def test_delivers_every_update(outputs: list[int], has_logprobs: bool) -> None:
    handle = make_handle()
    sent = [
        JobUpdate(
            7,
            (number, -number),
            output=output,
            logprobs=(TokenLogprob(-number),) if has_logprobs else (),
        )
        for number, output in enumerate(outputs)
    ]
    sent += [
        JobUpdate(7, (99,), completion=COMPLETION, output=output, has_more=output > 0)
        for output in (2, 1, 0)
    ]
    assert not any(map(handle.push, sent))
    assert read_all(handle) == sent


def test_cancels_a_slow_reader_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 640)
    handle = make_handle()
    cancel_requested = [handle.push(JobUpdate(7, (1, 2, 3, 4))) for _ in range(200)]
    assert cancel_requested.count(True) == 1, "the engine cancels it once"
    with pytest.raises(OverloadedError, match="slowly"):
        read_all(handle)


def test_the_end_of_a_large_output_cancels_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 10)
    handle = make_handle()
    sent = [
        JobUpdate(7, (1,) * 20, completion=COMPLETION, output=output, has_more=output == 0)
        for output in (0, 1)
    ]
    assert not any(map(handle.push, sent))
    assert read_all(handle) == sent


def test_never_cancels_a_reader_that_keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_UNREAD_VALUES", 640)

    async def push_and_read() -> None:
        handle = make_handle()
        for _ in range(20):
            for _ in range(64):
                assert not handle.push(JobUpdate(7, (1,)))
            for _ in range(64):
                await handle.next()

    asyncio.run(push_and_read())


def test_delivers_queued_updates_before_engine_failure() -> None:
    handle = make_handle()
    handle.push(JobUpdate(7, (1,)))
    handle.close()
    assert asyncio.run(handle.next()).tokens == (1,)
    with pytest.raises(EngineStoppedError):
        asyncio.run(handle.next())
