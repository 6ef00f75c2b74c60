"""News of a job: one by one to who streams, in portions to who wants the whole."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine import ticket as tickets
from server.engine.lifecycle import Outcome
from server.engine.sampling import TokenLogprob
from server.engine.sequence import Cost, End, Progress
from server.engine.ticket import PORTION, Ticket
from server.errors import EngineStoppedError, OverloadedError

END = End(
    outcome=Outcome.STOP,
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
    failure="",
    num_reused_tokens=0,
)


def read(ticket: Ticket) -> list[Progress]:
    """All news there is, up to the last."""

    async def every() -> list[Progress]:
        found = [await ticket.next()]
        while not found[-1].is_last:
            found.append(await ticket.next())
        return found

    return asyncio.run(every())


def make(*, is_patient: bool) -> Ticket:
    return Ticket(1, 0, 0, Cost(1, 1), is_patient)


@given(
    outputs=st.lists(st.integers(0, 2), max_size=3 * PORTION),
    is_patient=st.booleans(),
    has_logprobs=st.booleans(),
)
def test_nothing_is_lost(outputs: list[int], is_patient: bool, has_logprobs: bool) -> None:
    ticket = make(is_patient=is_patient)
    for number, output in enumerate(outputs):
        logprobs = (TokenLogprob(-number),) if has_logprobs else ()
        told = Progress(7, (number, -number), output=output, logprobs=logprobs)
        assert not ticket.tell(told, float(number))
    for output in (2, 1, 0):
        ticket.tell(Progress(7, (99,), end=END, output=output, has_more=output > 0), 1e6)
    news = read(ticket)
    for output in range(3):
        mine = [progress for progress in news if progress.output == output]
        numbers = [number for number, of in enumerate(outputs) if of == output]
        tokens = [token for number in numbers for token in (number, -number)]
        assert [token for part in mine for token in part.tokens] == [*tokens, 99]
        values = [row.logprob for part in mine for row in part.logprobs]
        assert values == ([-number for number in numbers] if has_logprobs else [])
        assert [part.end for part in mine if part.end is not None] == [END]
        assert mine[-1].end is END
        moments = [moment for part in mine for moment in part.moments]
        expected = [float(number) for number in numbers for _ in range(2)]
        assert moments == ([*expected, 1e6] if is_patient else [])
    portions = -(-(len(outputs) + 3) // PORTION)
    assert len(news) <= 3 * portions if is_patient else len(news) == len(outputs) + 3


@pytest.mark.parametrize("is_patient", [False, True])
def test_more_than_is_kept_is_given_up(
    monkeypatch: pytest.MonkeyPatch, *, is_patient: bool
) -> None:
    monkeypatch.setattr(tickets, "MAX_UNREAD", 10 * PORTION)
    ticket = make(is_patient=is_patient)
    wanted = [ticket.tell(Progress(7, (1, 2, 3, 4)), 0.0) for _ in range(3 * PORTION)]
    assert wanted.count(True) == 1, "it is cancelled once"
    with pytest.raises(OverloadedError, match="slowly"):
        read(ticket)


@pytest.mark.parametrize("is_patient", [False, True])
def test_who_reads_is_never_given_up(monkeypatch: pytest.MonkeyPatch, *, is_patient: bool) -> None:
    monkeypatch.setattr(tickets, "MAX_UNREAD", 10 * PORTION)

    async def talk() -> None:
        ticket = make(is_patient=is_patient)
        for _ in range(20):
            for _ in range(PORTION):
                assert not ticket.tell(Progress(7, (1,)), 0.0)
            for _ in range(1 if is_patient else PORTION):
                await ticket.next()

    asyncio.run(talk())


def test_what_waits_is_told_before_the_end_of_the_engine() -> None:
    ticket = make(is_patient=False)
    ticket.tell(Progress(7, (1,)), 0.0)
    ticket.abandon()
    assert asyncio.run(ticket.next()).tokens == (1,)
    with pytest.raises(EngineStoppedError):
        asyncio.run(ticket.next())
