"""The tensors of the slots: allocated once, bound by pointer, updated in place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model.bundle import StateRole, StateSpec
from server.runtime.memory import Layout, MakeMemory, Move, Tensor


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number and size of one model's slots in one lane."""

    num_slots: int
    max_length: int  # tokens that a slot holds
    max_source_length: int  # tokens of an encoder's source that a slot holds
    num_prefix_slots: int = 0  # rows for cached prefixes only, after the slots

    @property
    def num_rows(self) -> int:
        return self.num_slots + self.num_prefix_slots


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """Part of a slot: tokens ``first_token … num_tokens-1``, and the encoder's source tokens."""

    num_tokens: int
    num_source_tokens: int = 0
    first_token: int = 0


def can_hold_prefixes(states: Iterable[StateSpec]) -> bool:
    """Whether a sequence can reuse the slot of another one: its states depend on tokens only.

    With a ``RECURRENT`` state, it reuses all tokens of the slot or none.
    """
    return all(state.role != StateRole.CROSS and state.source is None for state in states)


class SlotTensors:
    """One tensor ``[slots, *slot shape]`` for each state of a decode graph.

    Args:
        states: the states of the decode graph.
        num_slots: the number of slots, those for cached prefixes only included.
        max_length: tokens that a ``KV`` state holds per slot.
        max_source_length: tokens that a ``CROSS`` state holds per slot.
        memory: allocates the tensors.

    Attributes:
        num_slots: the number of slots.
        filled_by_encoder: the states that an encoder's outputs fill.
        has_recurrent_states: whether a run overwrites states, which must be restored if it fails.
        holds_prefixes: see :func:`can_hold_prefixes`.
        before_change: called before anything but a decode step reads or changes slots.
    """

    def __init__(
        self,
        states: tuple[StateSpec, ...],
        num_slots: int,
        max_length: int,
        max_source_length: int,
        memory: MakeMemory,
    ) -> None:
        self._states = states
        self.num_slots = num_slots
        self.filled_by_encoder = tuple(state for state in states if state.source is not None)
        self._names = {
            role: tuple(state.name for state in states if state.role == role) for role in StateRole
        }
        self.has_recurrent_states = bool(self._names[StateRole.RECURRENT])
        self.holds_prefixes = can_hold_prefixes(states)
        self.before_change: Callable[[], None] = _do_nothing
        self._memory = memory(self.layouts(num_slots, max_length, max_source_length))

    def layouts(
        self, num_rows: int, max_length: int, max_source_length: int = 0
    ) -> dict[str, Layout]:
        """Returns the layouts of the state tensors for ``num_rows`` slots, by state name."""
        sizes = {"length": max_length, "source_length": max_source_length}
        return {
            state.name: Layout(
                # A recurrent state has a second row for each slot, for :meth:`save`.
                num_rows * (1 + (state.role == StateRole.RECURRENT)),
                tuple(sizes[d] if isinstance(d, str) else d for d in state.shape),
                np.dtype(state.dtype.value),
                has_tokens=state.role != StateRole.RECURRENT,
            )
            for state in self._states
        }

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the device; None if the device does not report it."""
        return self._memory.free_bytes

    def rows(self, first_slot: int, count: int) -> dict[tuple[str, str], Tensor]:
        """Returns views of ``count`` slots from ``first_slot`` on, by (input, output) name."""
        return {
            (state.input, state.output): self._memory.rows(state.name, first_slot, count)
            for state in self._states
        }

    def write_cross(
        self, slots: Sequence[int], encoded: Mapping[str, Tensor], lengths: Sequence[int]
    ) -> None:
        """Stores an encoder's outputs: cross-attention keys and values, initial recurrent states.

        Args:
            slots: the slot of each sequence, in the order of the encoder's batch.
            encoded: outputs of ``encode``: ``[batch, heads, source_length, head_size]`` for a
                ``CROSS`` state, ``[batch, *shape]`` for a ``RECURRENT`` one.
            lengths: the number of valid source tokens of each sequence.
        """
        sources = {state.name: encoded[state.source or ""] for state in self.filled_by_encoder}
        self.write(slots, sources, lengths)

    def write(
        self, slots: Sequence[int], sources: Mapping[str, Tensor], lengths: Sequence[int]
    ) -> None:
        """Copies the first tokens of rows of other tensors into slots.

        Args:
            slots: the target slot of row 0, 1, …
            sources: the tensors by state name: ``[rows, heads, any length, head_size]`` for a
                state with tokens, else ``[rows, *shape]``.
            lengths: the number of tokens to copy from each row.
        """
        self.before_change()
        moves = [
            Move(index, slot, 0, length)
            for index, (slot, length) in enumerate(zip(slots, lengths, strict=True))
        ]
        self._memory.write(sources, moves)

    def reset(self, slot: int) -> None:
        """Zeroes the recurrent states of a slot: a new sequence starts from zero."""
        if self.has_recurrent_states:
            self._memory.zero(self._names[StateRole.RECURRENT], slot)

    def clear(self, slot: int) -> None:
        """Zeroes a slot: values that are not finite must not reach its next owner."""
        self.before_change()
        for names in self._names.values():
            self._memory.zero(names, slot)

    def release(self, slot: int, first_token: int = 0) -> None:
        """Releases an unused slot's memory of tokens ``first_token`` and later."""
        self._memory.release(slot, first_token)

    def save(self, first_slot: int, count: int) -> None:
        """Saves the recurrent states of ``count`` slots from ``first_slot`` on."""
        if count and self.has_recurrent_states:
            saved = Move(first_slot, self.num_slots + first_slot, num_rows=count)
            self._memory.move(self._names[StateRole.RECURRENT], [saved])

    def restore(self, first_slot: int, count: int) -> None:
        """Restores the recurrent states of these slots that :meth:`save` saved."""
        if count and self.has_recurrent_states:
            saved = Move(self.num_slots + first_slot, first_slot, num_rows=count)
            self._memory.move(self._names[StateRole.RECURRENT], [saved])

    def copy(self, source: int, target: int, span: SlotSpan) -> None:
        """Copies a span of slot ``source``, and its whole recurrent states, to slot ``target``."""
        self.move([(source, target, span)])

    def rotate(self, slots: Sequence[int], spans: Sequence[SlotSpan], *, keep_first: bool) -> None:
        """Moves the content of each slot to the slot before it in the list.

        Args:
            slots: the content of ``slots[i + 1]`` goes to ``slots[i]``.
            spans: the part of each slot that holds content.
            keep_first: moves the content of the first slot to the last; without it, it is lost.
        """
        moves = list(zip(slots[1:], slots, spans[1:], strict=False))
        if keep_first and len(slots) > 1:
            moves.append((slots[0], slots[-1], spans[0]))
        self.move(moves)

    def move(self, moves: Sequence[tuple[int, int, SlotSpan]]) -> None:
        """Copies ``(source slot, target slot, span)``.

        At most one of them reads a slot that one before it writes.
        """
        if not moves:
            return
        self.before_change()
        tokens = [Move(a, b, span.first_token, span.num_tokens) for a, b, span in moves]
        source = [Move(a, b, 0, span.num_source_tokens) for a, b, span in moves]
        for role, parts in ((StateRole.KV, tokens), (StateRole.CROSS, source)):
            if any(part.start < part.stop for part in parts):
                self._memory.move(self._names[role], parts)
        if self.has_recurrent_states:
            self._memory.move(self._names[StateRole.RECURRENT], tokens)


def _do_nothing() -> None:
    """The default of :attr:`SlotTensors.before_change`."""
