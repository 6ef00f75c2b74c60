"""The scheduler and the slots: bookkeeping by properties."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.engine.cache.slots import SlotTable
from server.engine.scheduler import Limits, is_decodable, overdue, schedule


@dataclass(frozen=True)
class Item:
    id: int
    num_remaining_tokens: int
    num_cached_tokens: int = 0
    num_source_tokens: int = 0
    num_reserved_rows: int = 0
    is_encoded: bool = True
    is_cancelled: bool = False
    deadline: float | None = None


items = st.builds(
    Item,
    id=st.just(0),
    num_remaining_tokens=st.integers(1, 60),
    num_reserved_rows=st.integers(0, 3),
    is_cancelled=st.booleans(),
    deadline=st.none() | st.floats(0, 10),
)
limits = st.builds(
    Limits, num_slots=st.integers(1, 8), max_batched_tokens=st.integers(1, 64), min_chunk=st.just(4)
)


@st.composite
def situations(draw):
    bounds = draw(limits)
    num_decoding = draw(st.integers(0, bounds.num_slots))
    running = [Item(i, 1, draw(st.integers(1, 50))) for i in range(num_decoding)]
    if num_decoding < bounds.num_slots and draw(st.booleans()):
        running.append(Item(99, draw(st.integers(2, 60)), draw(st.integers(1, 50))))
    waiting = [replace(item, id=100 + i) for i, item in enumerate(draw(st.lists(items)))]
    return waiting, running, bounds


@given(situations())
def test_a_plan_keeps_its_promises(situation) -> None:
    waiting, running, bounds = situation
    plan = schedule(waiting, running, bounds)
    by_id = {item.id: item for item in (*waiting, *running)}
    kept = running
    admitted = [by_id[id_] for id_ in plan.admit]
    assert sum(1 + item.num_reserved_rows for item in (*kept, *admitted)) <= bounds.num_slots
    assert set(plan.decode) == {item.id for item in kept if is_decodable(item)}
    chunks = [chunk for batch in plan.prefill for chunk in batch]
    assert not {chunk.id for chunk in chunks} & set(plan.decode)
    assert sum(chunk.num_tokens for chunk in chunks) <= max(
        bounds.max_batched_tokens - len(plan.decode), bounds.min_chunk
    )
    order = [item.id for item in kept] + list(plan.admit)
    split = [c for c in chunks if c.num_tokens < by_id[c.id].num_remaining_tokens]
    assert len(split) <= 1
    if split:
        assert order[-1] == split[0].id
    for batch in plan.prefill:
        rows = [order.index(chunk.id) for chunk in batch]
        assert rows == list(range(rows[0], rows[0] + len(rows)))
    assert list(plan.admit) == [item.id for item in waiting[: len(plan.admit)]]


@given(st.lists(items))
def test_what_is_cancelled_or_late_is_overdue(listed) -> None:
    numbered = [replace(item, id=index) for index, item in enumerate(listed)]
    for item in numbered:
        is_late = item.deadline is not None and item.deadline <= 5.0
        assert (item.id in overdue(numbered, 5.0)) == (item.is_cancelled or is_late)


@given(situations())
def test_a_step_with_work_does_something(situation) -> None:
    waiting, running, bounds = situation
    waiting = [item for item in waiting if item.num_reserved_rows < bounds.num_slots]
    plan = schedule(waiting, running, bounds)
    if waiting or running:
        assert plan.admit or plan.prefill or plan.decode


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_sources_of_similar_length_share_an_encoder_run(lengths) -> None:
    waiting = [Item(i, 1, 0, length, is_encoded=False) for i, length in enumerate(lengths)]
    plan = schedule(waiting, (), Limits(num_slots=64, max_batched_tokens=10_000))
    assert sorted(id_ for batch in plan.encode for id_ in batch) == sorted(plan.admit)
    for batch in plan.encode:
        sizes = [lengths[id_] for id_ in batch]
        assert max(sizes) * len(sizes) <= 1.25 * sum(sizes)


class Slots(RuleBasedStateMachine):
    """The table against rows that are really copied."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(5)
        self.rows: list[int | None] = [None] * 5
        self.next_id = 0

    @precondition(lambda self: self.table.num_free)
    @rule(before_last=st.booleans())
    def acquire(self, before_last) -> None:
        last = self.table.ids[-1] if self.table.ids else None
        move = self.table.acquire(self.next_id, before_last=before_last)
        if move is not None:
            self.rows[move.target] = self.rows[move.source]
        self.rows[self.table.row_of(self.next_id)] = self.next_id
        if before_last and last is not None:
            assert self.table.ids[-1] == last
        self.next_id += 1

    @precondition(lambda self: self.table.num_used)
    @rule(data=st.data(), keep_last=st.booleans())
    def release(self, data, keep_last) -> None:
        last = self.table.ids[-1]
        id_ = data.draw(st.sampled_from(self.table.ids))
        cycle = self.table.release(id_, keep_last=keep_last)
        assert self.rows[cycle[0]] == id_
        contents = [self.rows[row] for row in cycle]
        for row, content in zip(cycle, contents[1:], strict=False):
            self.rows[row] = content
        assert cycle[-1] == self.table.num_used
        if keep_last and id_ != last:
            assert self.table.ids[-1] == last

    @invariant()
    def every_owner_finds_its_content(self) -> None:
        assert self.table.num_free + self.table.num_used == 5
        for row, id_ in enumerate(self.table.ids):
            assert self.rows[row] == id_ == self.rows[self.table.row_of(id_)]


TestSlots = Slots.TestCase
