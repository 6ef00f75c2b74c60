"""Tracks which sequence owns which slot, and which slots hold a cached prefix: integers only."""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotMove:
    """Copies the content of slot ``source`` to slot ``target``."""

    source: int
    target: int


class SlotTable:
    """Keeps every row of the cache in exactly one of three states: running, cached prefix or free.

    Rows ``0 … num_running-1`` run, without holes, so that adjacent slots can share a model run. A
    later row holds a cached prefix of at least one token, or nothing.

    Args:
        num_slots: the most sequences that run at once.
        max_length: tokens that a row holds.
        num_prefix_slots: rows for cached prefixes only, after the slots.
    """

    def __init__(self, num_slots: int, max_length: int, num_prefix_slots: int = 0) -> None:
        self.num_slots = num_slots
        self.num_rows = num_slots + num_prefix_slots
        self._max_length = max_length
        self._ids: list[int] = []
        self._slot_of: dict[int, int] = {}
        self._free = set(range(self.num_rows))
        self._num_prefix_tokens: dict[int, int] = {}  # by slot

    def __repr__(self) -> str:
        return (
            f"SlotTable(running={self.num_running}, prefixes={self.num_prefixes}, "
            f"free={self.num_free}, rows={self.num_rows})"
        )

    @property
    def num_running(self) -> int:
        return len(self._ids)

    @property
    def num_prefixes(self) -> int:
        return len(self._num_prefix_tokens)

    @property
    def num_free(self) -> int:
        """Rows that hold nothing."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Slots that a sequence can acquire: those that do not run."""
        return self.num_slots - len(self._ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Owners in slot order."""
        return tuple(self._ids)

    def slot_of(self, id_: int) -> int:
        """Returns the slot that ``id_`` owns. Raises ``KeyError`` if it owns none."""
        return self._slot_of[id_]

    def num_prefix_tokens(self, slot: int) -> int:
        """Returns the number of tokens of the cached prefix in ``slot``; 0 if it holds none."""
        return self._num_prefix_tokens.get(slot, 0)

    def acquire(
        self, id_: int, *, before_last: bool = False, prefix_to: int | None = None
    ) -> SlotMove | None:
        """Gives ``id_`` the first slot that does not run.

        Args:
            id_: the new owner.
            prefix_to: the row to which the slot's cached prefix moves, where it replaces any
                other prefix; None drops the slot's prefix.
            before_last: gives ``id_`` the slot of the last owner, which is still prefilling and
                moves up one slot.

        Returns:
            The copy of the last owner's slot, to make after the prefix has moved; None if no
            owner moves. The table already reflects both moves.

        Raises:
            ValueError: no slot is available, ``id_`` already owns one, the slot has no prefix to
                move, or ``prefix_to`` is no later row.
        """
        if not self.num_available:
            raise ValueError("no slot is available")
        if id_ in self._slot_of:
            raise ValueError(f"sequence {id_} has a slot already")
        slot = len(self._ids)
        num_tokens = self._num_prefix_tokens.get(slot, 0)
        if prefix_to is not None:
            if not num_tokens or not slot < prefix_to < self.num_rows:
                raise ValueError(f"no prefix can move from slot {slot} to {prefix_to}")
            self._free.discard(prefix_to)
            self._num_prefix_tokens[prefix_to] = num_tokens
        self._free.discard(slot)
        self._num_prefix_tokens.pop(slot, None)
        move = None
        if before_last and slot:
            last = self._ids[-1]
            self._slot_of[last] = slot
            self._ids.insert(slot - 1, id_)
            slot, move = slot - 1, SlotMove(slot - 1, slot)
        else:
            self._ids.append(id_)
        self._slot_of[id_] = slot
        return move

    def release(
        self, id_: int, *, keep_last: bool = False, num_prefix_tokens: int = 0
    ) -> tuple[int, ...]:
        """Releases the slot of ``id_`` and closes the hole.

        Args:
            id_: the owner.
            keep_last: keeps the last owner, which is still prefilling, in the last slot that runs.
            num_prefix_tokens: the number of tokens of ``id_`` that stay as a cached prefix.

        Returns:
            Slots, from the slot of ``id_`` to the one that no longer runs: move the content of
            each to the slot before it in this list. The table already reflects the moves.
        """
        slot = self._slot_of.pop(id_)
        last = len(self._ids) - 1
        cycle = [slot]
        if keep_last and slot < last - 1:
            cycle.append(last - 1)
        if cycle[-1] < last:
            cycle.append(last)
        for target, source in itertools.pairwise(cycle):
            self._ids[target] = self._ids[source]
            self._slot_of[self._ids[target]] = target
        self._ids.pop()
        if num_prefix_tokens:
            self._num_prefix_tokens[last] = num_prefix_tokens
        else:
            self._free.add(last)
        return tuple(cycle)

    def free_prefix(self, slot: int) -> None:
        """Frees a row that holds a cached prefix. Raises ``KeyError`` if it holds none."""
        del self._num_prefix_tokens[slot]
        self._free.add(slot)

    def trim_prefix(self, slot: int, num_tokens: int) -> None:
        """Shortens the cached prefix in ``slot``, if there is one, to ``num_tokens``."""
        if slot in self._num_prefix_tokens:
            self._num_prefix_tokens[slot] = min(self._num_prefix_tokens[slot], num_tokens)

    def check(self) -> None:
        """Checks that free + running + cached prefixes = all rows. For tests.

        Raises:
            RuntimeError: a slot is lost or counted twice, an owner does not find its slot, or a
                prefix has more tokens than a slot holds.
        """
        running, prefixes = range(len(self._ids)), self._num_prefix_tokens.keys()
        states = [*self._free, *running, *prefixes]
        if sorted(states) != list(range(self.num_rows)) or len(running) > self.num_slots:
            raise RuntimeError(f"slots lost or counted twice: {self!r}, {sorted(states)}")
        if self._slot_of != {id_: slot for slot, id_ in enumerate(self._ids)}:
            raise RuntimeError(f"owners lost: {self._ids} does not match {self._slot_of}")
        if not all(0 < count <= self._max_length for count in self._num_prefix_tokens.values()):
            raise RuntimeError(f"impossible prefixes: {self._num_prefix_tokens}")
