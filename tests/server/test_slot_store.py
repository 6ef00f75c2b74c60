"""Slot accounting: the slot store stays consistent, and its check finds corruption."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.engine.cache.prefix_cache import MIN_REUSED_TOKENS
from server.engine.cache.slot_store import SlotStore
from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.requests.lifecycle import Event
from server.engine.requests.sequence import DecodingSequence
from server.runtime.host_memory import HostMemory
from tests.server.fake_backend import decode_spec, host_view
from tests.server.worker_harness import make_harness, make_job

NUM_SLOTS, MAX_LENGTH, NUM_PREFIX_SLOTS = 4, 80, 2
NUM_ROWS = NUM_SLOTS + NUM_PREFIX_SLOTS


class Store:
    """An empty slot store and the cached token ids of each row."""

    def __init__(self) -> None:
        spec = decode_spec(has_source=False, is_recurrent=False)
        cache = SlotTensors(spec.states, NUM_ROWS, MAX_LENGTH, MAX_LENGTH, HostMemory)
        self.slots = SlotStore(cache, Capacity(NUM_SLOTS, MAX_LENGTH, MAX_LENGTH, NUM_PREFIX_SLOTS))
        ((_, keys),) = cache.rows(0, NUM_ROWS).items()
        self.rows = host_view(keys)[:, 0, :, 0]

    def prefill(self, sequence: DecodingSequence) -> None:
        """Caches all tokens of a running sequence."""
        self.rows[self.slots.slot_of(sequence), : len(sequence.tokens)] = sequence.tokens
        sequence.num_cached_tokens = len(sequence.tokens)


def empty_store() -> SlotStore:
    return Store().slots


class SlotStoreMachine(RuleBasedStateMachine):
    """Sequences are admitted, prefilled, forked, failed or finished in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Store()
        self.store: Any = self.cache.slots
        self.next_id = 0

    @precondition(lambda self: len(self.store.running) < NUM_SLOTS)
    @rule(
        prompts=st.lists(
            st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(0, 40), st.booleans()),
            min_size=1,
            max_size=6,
        ),
        num_admitted=st.integers(1, 4),
    )
    def admit(self, prompts, num_admitted) -> None:
        """Prompts share parts with others; the scheduler admits the first of them."""
        waiting = []
        for first, length, rest, is_other in prompts:
            tokens = [first] * length + [3 + self.next_id % 5] * rest
            job = replace(make_job(tokens, 1), cache_scope="other" if is_other else "")
            waiting.append(DecodingSequence.first_of(self.next_id, job))
            self.next_id += 1
        num_free = NUM_SLOTS - len(self.store.running)
        plan = self.store.plan_admissions(waiting)
        assert not any(sequence.num_cached_tokens for sequence in waiting)
        held = plan.held
        is_prefilling = any(s.num_remaining_tokens > 1 for s in self.store.running)
        assert is_prefilling or waiting[0].id not in held
        admitted = [s for s in waiting[:num_free] if s.id not in held][:num_admitted]
        for sequence in admitted:
            sequence.on(Event.PREFILL)
            self.store.admit(sequence, plan.matches.get(sequence.id))
            reused = sequence.num_cached_tokens
            assert reused == plan.num_cached(sequence.id)
            assert reused == 0 or MIN_REUSED_TOKENS <= reused < len(sequence.tokens)
            assert self.store.running[-1] is sequence

    @precondition(lambda self: self.store.running)
    @rule(data=st.data())
    def prefill(self, data) -> None:
        self.cache.prefill(data.draw(st.sampled_from(self.store.running)))

    @precondition(lambda self: 0 < len(self.store.running) < NUM_SLOTS)
    @rule(data=st.data())
    def fork(self, data) -> None:
        parent = data.draw(st.sampled_from(self.store.running))
        child = parent.fork(self.next_id, 0)
        self.store.fork(parent, child)
        assert self.store.get(child.id) is child
        self.next_id += 1

    @precondition(lambda self: self.store.running)
    @rule(data=st.data(), event=st.sampled_from([Event.FINISH, Event.FAIL]))
    def end(self, data, event) -> None:
        sequence = data.draw(st.sampled_from(self.store.running))
        sequence.on(event)
        if event == Event.FAIL:
            self.store.clear(sequence)
        self.store.release(sequence)
        assert sequence not in self.store.running

    @rule(first=st.integers(0, NUM_SLOTS - 1))
    def pad(self, first) -> None:
        positions = self.store.padding_positions(first, NUM_SLOTS - first)
        full = [s.num_cached_tokens == MAX_LENGTH for s in self.store.running[first:]]
        assert (positions is None) == any(full)
        for slot, position in enumerate(positions or (), first):
            self.cache.rows[slot, position] = -1

    @invariant()
    def everything_is_accounted_for(self) -> None:
        self.store.check()
        slots = [self.store.slot_of(sequence) for sequence in self.store.running]
        assert slots == list(range(len(slots)))

    @invariant()
    def every_row_holds_its_tokens(self) -> None:
        for slot, sequence in enumerate(self.store.running):
            cached = sequence.tokens[: sequence.num_cached_tokens]
            assert self.cache.rows[slot, : len(cached)].tolist() == cached
        for row, prefix in self.store._prefixes.items():
            assert row >= len(self.store.running)
            assert tuple(self.cache.rows[row, : len(prefix.tokens)]) == prefix.tokens


TestStore = SlotStoreMachine.TestCase
TestStore.settings = settings(max_examples=50)


def _lose_a_free_slot(store: Any) -> None:
    store._slots._free.pop()


def _count_a_slot_twice(store: Any) -> None:
    store._slots._free.add(0)


def _lose_a_prefix(store: Any) -> None:
    store._prefixes._prefixes.clear()


def _overfill_a_prefix(store: Any) -> None:
    (slot,) = store._slots._num_prefix_tokens
    store._slots._num_prefix_tokens[slot] = MAX_LENGTH + 1


def _cache_unknown_tokens(store: Any) -> None:
    store.running[0].num_cached_tokens += 1


def _swap_owners(store: Any) -> None:
    store.running = store.running[::-1]


@pytest.mark.parametrize(
    "damage",
    [
        _lose_a_free_slot,
        _count_a_slot_twice,
        _lose_a_prefix,
        _overfill_a_prefix,
        _cache_unknown_tokens,
        _swap_owners,
    ],
)
def test_check_detects_corrupted_accounting(damage: Callable[[SlotStore], None]) -> None:
    store = empty_store()
    sequences = [DecodingSequence.first_of(id_, make_job([5] * 40, 1)) for id_ in range(3)]
    for sequence in sequences:
        sequence.on(Event.PREFILL)
        store.admit(sequence)
        sequence.num_cached_tokens = 40
    store.release(sequences[1])
    store.check()
    damage(store)
    with pytest.raises(RuntimeError):
        store.check()


def test_check_detects_a_lost_sequence() -> None:
    harness = make_harness()
    harness.submit(1, replace(make_job([5, 6], 20), eos=frozenset()))
    harness.step()
    worker: Any = harness.worker
    worker.check()
    worker._jobs._groups.clear()
    with pytest.raises(RuntimeError):
        worker.check()


@given(length=st.integers(1, MAX_LENGTH))
def test_caches_long_prefixes_of_sequences_that_did_not_fail(length: int) -> None:
    for event in (Event.FINISH, Event.FAIL):
        store = empty_store()
        sequence = DecodingSequence.first_of(0, make_job([5] * length, 1))
        sequence.on(Event.PREFILL)
        store.admit(sequence)
        sequence.num_cached_tokens = length
        sequence.on(event)
        store.release(sequence)
        is_kept = event == Event.FINISH and length >= MIN_REUSED_TOKENS
        assert f"prefixes={int(is_kept)}, free={NUM_ROWS - is_kept}" in repr(store)
