"""Property tests of the scheduler and of the slot table."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.engine.cache.admission_plan import AdmissionPlan, PrefixMatch
from server.engine.cache.slots import SlotTable
from server.engine.requests.lifecycle import Phase
from server.engine.scheduler import StepLimits, is_decodable, schedule

NUM_SLOTS, MAX_LENGTH, NUM_PREFIX_SLOTS = 5, 9, 3
NUM_ROWS = NUM_SLOTS + NUM_PREFIX_SLOTS


@dataclass(frozen=True)
class Item:
    id: int
    num_remaining_tokens: int
    num_cached_tokens: int = 0
    num_source_tokens: int = 0
    num_reserved_slots: int = 0
    max_decode_runs: int = 1
    phase: Phase = Phase.WAITING


items = st.builds(
    Item,
    id=st.just(0),
    num_remaining_tokens=st.integers(1, 60),
    num_reserved_slots=st.integers(0, 3),
    phase=st.sampled_from([Phase.WAITING, Phase.CANCELLING]),
)
limits = st.builds(
    StepLimits,
    num_slots=st.integers(1, 8),
    max_batched_tokens=st.integers(1, 64),
    min_chunk=st.just(4),
)


@st.composite
def situations(draw):
    bounds = draw(limits)
    num_decoding = draw(st.integers(0, bounds.num_slots))
    cached = st.integers(1, 50)
    running = [Item(i, 1, draw(cached), phase=Phase.DECODING) for i in range(num_decoding)]
    if num_decoding < bounds.num_slots and draw(st.booleans()):
        num_remaining = draw(st.integers(2, 60))
        running.append(Item(99, num_remaining, draw(cached), phase=Phase.PREFILLING))
    waiting = [replace(item, id=100 + i) for i, item in enumerate(draw(st.lists(items)))]
    return waiting, running, bounds


@st.composite
def shared_prefixes(draw, waiting) -> AdmissionPlan:
    ids = [item.id for item in waiting]
    held = draw(st.sets(st.sampled_from(ids))) if ids else set()
    matches = {
        item.id: PrefixMatch(0, draw(st.integers(1, item.num_remaining_tokens - 1)))
        for item in waiting
        if item.num_remaining_tokens > 1 and draw(st.booleans())
    }
    return AdmissionPlan(matches, held)


@given(situations(), st.data())
def test_plan_respects_limits_and_slot_order(situation, data) -> None:
    waiting, running, bounds = situation
    prefixes = data.draw(shared_prefixes(waiting))
    held = prefixes.held
    plan = schedule(waiting, running, bounds, prefixes)
    by_id = {item.id: item for item in (*waiting, *running)}
    remaining = {
        item.id: item.num_remaining_tokens - prefixes.num_cached(item.id) for item in by_id.values()
    }
    admitted = [by_id[id_] for id_ in plan.admit]
    assert sum(1 + item.num_reserved_slots for item in (*running, *admitted)) <= bounds.num_slots
    assert set(plan.decode) == {item.id for item in running if is_decodable(item)}
    chunks = [chunk for batch in plan.prefill for chunk in batch]
    assert not {chunk.id for chunk in chunks} & set(plan.decode)
    assert sum(chunk.num_tokens for chunk in chunks) <= max(
        bounds.max_batched_tokens - len(plan.decode), bounds.min_chunk
    )
    order = [item.id for item in running] + list(plan.admit)
    split = [c for c in chunks if c.num_tokens < remaining[c.id]]
    assert len(split) <= 1
    if split:
        assert order[-1] == split[0].id
    alone = {item.id for item in running} | {i for i in plan.admit if prefixes.num_cached(i)}
    for batch in plan.prefill:
        assert len(batch) == 1 or not alone & {chunk.id for chunk in batch}
        rows = [order.index(chunk.id) for chunk in batch]
        assert rows == list(range(rows[0], rows[0] + len(rows)))
    free_to_go = [item.id for item in waiting if item.id not in held]
    assert list(plan.admit) == free_to_go[: len(plan.admit)]
    if plan.admit:  # those that were overtaken still have slots
        last = next(i for i, item in enumerate(waiting) if item.id == plan.admit[-1])
        in_order = (*running, *waiting[: last + 1])
        assert sum(1 + item.num_reserved_slots for item in in_order) <= bounds.num_slots


@given(situations())
def test_step_with_work_makes_progress(situation) -> None:
    waiting, running, bounds = situation
    waiting = [item for item in waiting if item.num_reserved_slots < bounds.num_slots]
    plan = schedule(waiting, running, bounds)
    if waiting or running:
        assert plan.admit or plan.prefill or plan.decode


@given(
    num_decoding=st.integers(0, 7),
    num_waiting=st.integers(1, 4),
    num_source_tokens=st.integers(0, 1),
    runs_since_encode=st.integers(1, 6),
)
def test_sources_wait_for_others_only_while_half_of_the_slots_decode(
    num_decoding: int, num_waiting: int, num_source_tokens: int, runs_since_encode: int
) -> None:
    bounds = StepLimits(num_slots=8, max_batched_tokens=64)
    running = [Item(id_, 1, 5, phase=Phase.DECODING) for id_ in range(num_decoding)]
    waiting = [
        Item(100 + id_, 1, num_source_tokens=num_source_tokens) for id_ in range(num_waiting)
    ]
    plan = schedule(waiting, running, bounds, runs_since_encode=runs_since_encode)
    waits = num_source_tokens and num_decoding >= 4 and runs_since_encode < bounds.encode_interval
    assert len(plan.admit) == (0 if waits else min(num_waiting, 8 - num_decoding))
    assert set(plan.decode) == set(range(num_decoding))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_sources_of_similar_length_share_an_encoder_run(lengths) -> None:
    waiting = [Item(i, 1, 0, length) for i, length in enumerate(lengths)]
    plan = schedule(waiting, (), StepLimits(num_slots=64, max_batched_tokens=10_000))
    assert sorted(id_ for batch in plan.encode for id_ in batch) == sorted(plan.admit)
    for batch in plan.encode:
        sizes = [lengths[id_] for id_ in batch]
        assert max(sizes) * len(sizes) <= 1.25 * sum(sizes)


class SlotTableMachine(RuleBasedStateMachine):
    """Compares the slot table with a model that copies slot contents."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(NUM_SLOTS, MAX_LENGTH, NUM_PREFIX_SLOTS)
        self.contents: list[int | None] = [None] * NUM_ROWS
        self.next_id = 0

    @precondition(lambda self: self.table.num_available)
    @rule(data=st.data(), before_last=st.booleans())
    def acquire(self, data, before_last) -> None:
        last = self.table.ids[-1] if self.table.ids else None
        slot, prefix_to = self.table.num_running, None
        num_tokens = self.table.num_prefix_tokens(slot)
        if num_tokens:
            prefix_to = data.draw(st.none() | st.integers(slot + 1, NUM_ROWS - 1))
        move = self.table.acquire(self.next_id, before_last=before_last, prefix_to=prefix_to)
        if prefix_to is not None:
            self.contents[prefix_to] = self.contents[slot]
            assert self.table.num_prefix_tokens(prefix_to) == num_tokens
        if move is not None:
            self.contents[move.target] = self.contents[move.source]
        self.contents[self.table.slot_of(self.next_id)] = self.next_id
        if before_last and last is not None:
            assert self.table.ids[-1] == last
        self.next_id += 1

    @precondition(lambda self: self.table.num_running)
    @rule(data=st.data(), keep_last=st.booleans(), num_prefix_tokens=st.integers(0, MAX_LENGTH))
    def release(self, data, keep_last, num_prefix_tokens) -> None:
        last = self.table.ids[-1]
        id_ = data.draw(st.sampled_from(self.table.ids))
        cycle = self.table.release(id_, keep_last=keep_last, num_prefix_tokens=num_prefix_tokens)
        assert self.contents[cycle[0]] == id_
        contents = [self.contents[slot] for slot in cycle]
        for slot, content in zip(cycle, contents[1:], strict=False):
            self.contents[slot] = content
        assert cycle[-1] == self.table.num_running
        assert self.table.num_prefix_tokens(cycle[-1]) == num_prefix_tokens
        if keep_last and id_ != last:
            assert self.table.ids[-1] == last

    @precondition(lambda self: self.table.num_prefixes)
    @rule(data=st.data())
    def free_prefix(self, data) -> None:
        held = [row for row in range(NUM_ROWS) if self.table.num_prefix_tokens(row)]
        row = data.draw(st.sampled_from(held))
        self.table.free_prefix(row)
        assert self.table.num_prefix_tokens(row) == 0

    @rule(slot=st.integers(0, NUM_ROWS - 1), num_tokens=st.integers(1, MAX_LENGTH))
    def trim(self, slot, num_tokens) -> None:
        before = self.table.num_prefix_tokens(slot)
        self.table.trim_prefix(slot, num_tokens)
        assert self.table.num_prefix_tokens(slot) == min(before, num_tokens)

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        self.table.check()
        table = self.table
        assert table.num_free + table.num_running + table.num_prefixes == NUM_ROWS
        assert table.num_available == NUM_SLOTS - table.num_running

    @invariant()
    def every_owner_finds_its_content(self) -> None:
        for slot, id_ in enumerate(self.table.ids):
            assert self.contents[slot] == id_ == self.contents[self.table.slot_of(id_)]


TestSlots = SlotTableMachine.TestCase
