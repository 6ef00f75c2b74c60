"""News of a job: one by one to who streams, in portions to who wants the whole."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests import job_handle as tickets
from server.engine.requests.job_handle import PORTION, JobHandle
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import Completion, Cost, JobUpdate
from server.errors import EngineStoppedError, OverloadedError

END = Completion(
    outcome=Outcome.STOP,
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
    failure="",
    num_reused_tokens=0,
)


def read(ticket: JobHandle) -> list[JobUpdate]:
    """All updates there is, up to the last."""

    async def every() -> list[JobUpdate]:
        found = [await ticket.next()]
        while not found[-1].is_last:
            found.append(await ticket.next())
        return found

    return asyncio.run(every())


def make(*, coalesce_updates: bool) -> JobHandle:
    return JobHandle(1, 0, 0, Cost(1, 1), coalesce_updates)


@given(
    outputs=st.lists(st.integers(0, 2), max_size=3 * PORTION),
    coalesce_updates=st.booleans(),
    has_logprobs=st.booleans(),
)
def test_nothing_is_lost(outputs: list[int], coalesce_updates: bool, has_logprobs: bool) -> None:
    ticket = make(coalesce_updates=coalesce_updates)
    for number, output in enumerate(outputs):
        logprobs = (TokenLogprob(-number),) if has_logprobs else ()
        told = JobUpdate(7, (number, -number), output=output, logprobs=logprobs)
        assert not ticket.tell(told, float(number))
    for output in (2, 1, 0):
        ticket.tell(JobUpdate(7, (99,), completion=END, output=output, has_more=output > 0), 1e6)
    updates = read(ticket)
    for output in range(3):
        mine = [progress for progress in updates if progress.output == output]
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
    portions = -(-(len(outputs) + 3) // PORTION)
    assert len(updates) <= 3 * portions if coalesce_updates else len(updates) == len(outputs) + 3


@pytest.mark.parametrize("coalesce_updates", [False, True])
def test_more_than_is_kept_is_given_up(
    monkeypatch: pytest.MonkeyPatch, *, coalesce_updates: bool
) -> None:
    monkeypatch.setattr(tickets, "MAX_UNREAD", 10 * PORTION)
    ticket = make(coalesce_updates=coalesce_updates)
    wanted = [ticket.tell(JobUpdate(7, (1, 2, 3, 4)), 0.0) for _ in range(3 * PORTION)]
    assert wanted.count(True) == 1, "it is cancelled once"
    with pytest.raises(OverloadedError, match="slowly"):
        read(ticket)


@pytest.mark.parametrize("coalesce_updates", [False, True])
def test_who_reads_is_never_given_up(
    monkeypatch: pytest.MonkeyPatch, *, coalesce_updates: bool
) -> None:
    monkeypatch.setattr(tickets, "MAX_UNREAD", 10 * PORTION)

    async def talk() -> None:
        ticket = make(coalesce_updates=coalesce_updates)
        for _ in range(20):
            for _ in range(PORTION):
                assert not ticket.tell(JobUpdate(7, (1,)), 0.0)
            for _ in range(1 if coalesce_updates else PORTION):
                await ticket.next()

    asyncio.run(talk())


def test_what_waits_is_told_before_the_end_of_the_engine() -> None:
    ticket = make(coalesce_updates=False)
    ticket.tell(JobUpdate(7, (1,)), 0.0)
    ticket.abandon()
    assert asyncio.run(ticket.next()).tokens == (1,)
    with pytest.raises(EngineStoppedError):
        asyncio.run(ticket.next())
