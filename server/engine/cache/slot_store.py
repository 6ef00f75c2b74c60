"""The cache of a worker: running sequences in the first slots, cached prefixes in later ones."""

from collections.abc import Sequence
from typing import NamedTuple

from server.engine.cache.admission_plan import (
    NOTHING_SHARED,
    AdmissionPlan,
    PrefixMatch,
    plan_admissions,
    take_slot,
)
from server.engine.cache.idle_rows import IdleLimits, IdleRows
from server.engine.cache.prefix_cache import MIN_REUSED_TOKENS, PrefixCache
from server.engine.cache.slot_tensors import Capacity, SlotSpan, SlotTensors
from server.engine.cache.slots import SlotMove, SlotTable
from server.engine.requests.lifecycle import Phase
from server.engine.requests.sequence import DecodingSequence


class SlotCopy(NamedTuple):
    """Copies the cached tokens of ``source``, from ``first_token`` on, to the slot of ``target``.

    Both sequences have the same encoder source.
    """

    source: DecodingSequence
    target: DecodingSequence
    first_token: int


class SlotStore:
    """Updates together: which slot holds what (:class:`SlotTable`), its tokens, and its tensors.

    Args:
        cache: the tensors.
        capacity: of ``cache``.

    Attributes:
        running: sequences in slot order.
    """

    def __init__(self, cache: SlotTensors, capacity: Capacity) -> None:
        self.running: tuple[DecodingSequence, ...] = ()
        self._cache = cache
        self._max_length = capacity.max_length
        self._slots = SlotTable(capacity.num_slots, capacity.max_length, capacity.num_prefix_slots)
        self._prefixes = PrefixCache(
            is_enabled=cache.holds_prefixes, are_whole=cache.has_recurrent_states
        )
        self._sequences: dict[int, DecodingSequence] = {}
        self._idle = IdleRows()

    def __repr__(self) -> str:
        return repr(self._slots)

    def get(self, id_: int) -> DecodingSequence:
        """The running sequence ``id_``. Raises ``KeyError`` if it does not run."""
        return self._sequences[id_]

    def slot_of(self, sequence: DecodingSequence) -> int:
        """The slot that ``sequence`` owns. Raises ``KeyError`` if it does not run."""
        return self._slots.slot_of(sequence.id)

    def room_of(self, sequence: DecodingSequence) -> int:
        """How many more tokens the slot of ``sequence`` holds."""
        return self._max_length - sequence.num_cached_tokens

    def plan_admissions(self, waiting: Sequence[DecodingSequence]) -> AdmissionPlan:
        """Finds what the next sequences copy when :meth:`admit` gives them slots, in order.

        Changes nothing. See :func:`server.engine.cache.admission_plan.plan_admissions`.
        """
        if not (self._prefixes.is_enabled and waiting and self._slots.num_available):
            return NOTHING_SHARED
        return plan_admissions(
            waiting, self.running, self._prefixes, self._slots.num_slots, self._slots.num_rows
        )

    def admit(self, sequence: DecodingSequence, match: PrefixMatch | None = None) -> None:
        """Gives ``sequence`` the next slot, and copies the cached prefix ``match`` into it."""
        slot = self._slots.num_running
        moves, _ = self._acquire(sequence, match)
        if match is not None:
            sequence.num_cached_tokens = match.num_tokens
            if match.slot != slot:
                moves.append((match.slot, slot, SlotSpan(match.num_tokens)))
        self._cache.move(moves)
        if match is None:
            self._cache.reset(slot)

    def fork(self, parent: DecodingSequence, child: DecodingSequence) -> None:
        """Gives ``child`` a slot with a copy of ``parent``'s. Call it after all runs of a step."""
        moves, last = self._acquire(child, None, before_last=self._is_last_prefilling())
        self._cache.move(moves)
        if last is not None:
            self._cache.copy(last.source, last.target, _span(self.running[last.target]))
        self._cache.copy(self.slot_of(parent), self.slot_of(child), _span(parent))

    def _acquire(
        self, sequence: DecodingSequence, match: PrefixMatch | None, *, before_last: bool = False
    ) -> tuple[list[tuple[int, int, SlotSpan]], SlotMove | None]:
        """Gives ``sequence`` a slot, without moving any tokens.

        Returns:
            The move of the cached prefix that the slot held, in a list, and that of the last
            running sequence, if it makes way (``before_last``).
        """
        slot = self._slots.num_running
        prefix = self._prefixes.get(slot)
        moved_to, freed = take_slot(slot, self._prefixes, self._slots.num_rows, match)
        if freed is not None:
            self._free_prefix(freed)
        last = self._slots.acquire(sequence.id, before_last=before_last, prefix_to=moved_to)
        self._use(slot, moved_to)
        self._sequences[sequence.id] = sequence
        self._refresh()
        if prefix is None or moved_to is None:
            return [], last
        return [(slot, moved_to, SlotSpan(len(prefix.tokens)))], last

    def copy(self, copies: Sequence[SlotCopy]) -> None:
        """Makes all copies. No sequence may be the source of one and the target of another."""
        self._cache.move(
            [
                (
                    self.slot_of(copy.source),
                    self.slot_of(copy.target),
                    SlotSpan(copy.source.num_cached_tokens, first_token=copy.first_token),
                )
                for copy in copies
            ]
        )

    def padding_positions(self, first_slot: int, count: int) -> list[int] | None:
        """The positions to which padding slots write a dummy token.

        Each is just after the slot's tokens, where the slot's next token overwrites it. A cached
        prefix that fills its slot loses its last token, or is dropped if prefixes are whole.

        Returns:
            A position in each slot ``first_slot … first_slot+count-1``; None if a running
            sequence fills its slot.
        """
        positions = []
        for slot in range(first_slot, first_slot + count):
            if slot < len(self.running):
                if not self.room_of(self.running[slot]):
                    return None
                position = self.running[slot].num_cached_tokens
            else:
                self._trim_prefix(slot, self._max_length - 1)
                position = self._slots.num_prefix_tokens(slot)
            positions.append(position)
        return positions

    def _trim_prefix(self, slot: int, num_tokens: int) -> None:
        if self._prefixes.are_whole and self._slots.num_prefix_tokens(slot) > num_tokens:
            self._prefixes.remove(slot)
            self._free_prefix(slot)
            return
        self._slots.trim_prefix(slot, num_tokens)
        self._prefixes.trim(slot, num_tokens)

    def clear(self, sequence: DecodingSequence) -> None:
        """Zeroes the slot of a failed sequence, if it runs.

        Call it before any slot moves: values that are not finite must not reach another slot.
        """
        if sequence.id in self._sequences:
            self._cache.clear(self.slot_of(sequence))

    def release(self, sequence: DecodingSequence) -> None:
        """Releases the slot. Its tokens stay as a cached prefix, unless the sequence failed."""
        before = self.running
        tokens = sequence.prefix_keys[: sequence.num_cached_tokens]
        keeps = sequence.phase != Phase.FAILED and self._keeps(sequence.cache_scope, tokens)
        cycle = self._slots.release(
            sequence.id,
            keep_last=self._is_last_prefilling(),
            num_prefix_tokens=len(tokens) if keeps else 0,
        )
        if keeps:
            self._prefixes.add(cycle[-1], sequence.cache_scope, tokens)
        self._cache.rotate(cycle, [_span(before[slot]) for slot in cycle], keep_first=keeps)
        del self._sequences[sequence.id]
        self._refresh()

    def release_idle(self, limits: IdleLimits, now: float) -> bool:
        """Gives memory of one row that no sequence runs in back to the operating system.

        A cached prefix keeps the memory of its tokens until it is dropped.

        Returns:
            Whether a row was given back: more may follow.
        """
        last_used = [(row, prefix.last_used) for row, prefix in self._prefixes.items()]
        for row in self._idle.expired_prefixes(last_used, limits, now):
            self._prefixes.remove(row)
            self._free_prefix(row)
        row_or_none = self._idle.take_due(lambda row: row >= self._slots.num_running, limits, now)
        if row_or_none is None:
            return False
        self._cache.release(row_or_none, self._slots.num_prefix_tokens(row_or_none))
        return True

    def _use(self, *rows: int | None) -> None:
        for row in rows:
            if row is not None:
                self._idle.use(row)

    def _keeps(self, scope: str, tokens: Sequence[int]) -> bool:
        """Whether ``tokens`` become a cached prefix. Frees the prefixes that they replace."""
        if not self._prefixes.is_enabled or len(tokens) < MIN_REUSED_TOKENS:
            return False
        for row in self._prefixes.covered_by(scope, tokens):
            self._prefixes.remove(row)
            self._free_prefix(row)
        return not self._prefixes.covers(scope, tokens)

    def _free_prefix(self, row: int) -> None:
        """Frees a row that holds a cached prefix; its memory is given back later."""
        self._slots.free_prefix(row)
        self._idle.free(row)

    def check(self) -> None:
        """Checks that every slot and token is accounted for. For tests: it visits every slot.

        Raises:
            RuntimeError: see :meth:`SlotTable.check`; or a slot's tokens differ from those of its
                owner or its cached prefix.
        """
        self._slots.check()
        if self._slots.ids != tuple(sequence.id for sequence in self.running):
            raise RuntimeError(f"{self._slots.ids} own slots, {self.running} run")
        for sequence in self.running:
            limit = min(len(sequence.tokens), self._max_length)
            if not 0 <= sequence.num_cached_tokens <= limit:
                raise RuntimeError(
                    f"sequence {sequence.id} has {sequence.num_cached_tokens} tokens cached, "
                    f"{len(sequence.tokens)} in all"
                )
        held = {row: len(prefix.tokens) for row, prefix in self._prefixes.items()}
        rows = range(self._slots.num_rows)
        if held != {row: n for row in rows if (n := self._slots.num_prefix_tokens(row))}:
            raise RuntimeError(f"the cached prefixes {held} are not those of {self._slots!r}")

    def _refresh(self) -> None:
        """Derives ``running`` from the table."""
        self.running = tuple(map(self._sequences.__getitem__, self._slots.ids))

    def _is_last_prefilling(self) -> bool:
        return bool(self.running) and self.running[-1].num_remaining_tokens > 1


def _span(sequence: DecodingSequence) -> SlotSpan:
    return SlotSpan(sequence.num_cached_tokens, sequence.num_source_tokens)
