"""The tensors behind the slots: allocated once, bound by pointer, updated in place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model.bundle import StateRole, StateSpec
from server.runtime.contract import Block, Layout, Memory, Move
from server.runtime.host_memory import HostMemory

MakeMemory = Callable[[Mapping[str, Layout]], Memory]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one model in one lane. Lengths in tokens."""

    num_slots: int
    max_length: int
    max_source_length: int


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a row: tokens ``first_token … num_tokens-1`` of ``KV``, and the source's."""

    num_tokens: int
    num_source_tokens: int = 0
    first_token: int = 0


class SlotCache:
    """One tensor ``[slots, *slot shape]`` for each state of a decode graph.

    Args:
        states: of the decode graph.
        num_slots: rows.
        max_length: tokens that a ``KV`` state holds per row.
        max_source_length: tokens that a ``CROSS`` state holds per row.
        memory: makes the tensors.
    """

    def __init__(
        self,
        states: tuple[StateSpec, ...],
        num_slots: int,
        max_length: int,
        max_source_length: int,
        memory: MakeMemory = HostMemory,
    ) -> None:
        sizes = {"length": max_length, "source_length": max_source_length}
        self._states = states
        self._num_slots = num_slots
        self._names = {
            role: [state.name for state in states if state.role == role] for role in StateRole
        }
        self._memory = memory(
            {
                state.name: Layout(
                    # Behind the rows of recurrent states is room to save each of them.
                    num_slots * (1 + (state.role == StateRole.RECURRENT)),
                    tuple(sizes[d] if isinstance(d, str) else d for d in state.shape),
                    np.dtype(state.dtype.value),
                    has_tokens=state.role != StateRole.RECURRENT,
                )
                for state in states
            }
        )

    @property
    def free_bytes(self) -> int | None:
        """What is left of the device's memory; None where that is not told."""
        return self._memory.free_bytes

    @property
    def holds_prefixes(self) -> bool:
        """Whether a row's first tokens are of use to another sequence that begins with them."""
        return all(state.role == StateRole.KV for state in self._states)

    def rows(self, first: int, count: int) -> dict[tuple[str, str], Block]:
        """Views of ``count`` rows from ``first``, by the graph's (input, output) names."""
        return {
            (state.input, state.output): self._memory.rows(state.name, first, count)
            for state in self._states
        }

    def write_cross(
        self, rows: Sequence[int], encoded: Mapping[str, Block], lengths: Sequence[int]
    ) -> None:
        """Stores an encoder's memory.

        Args:
            rows: of the sequences, in the order of the encoder's batch.
            encoded: outputs of ``encode``, each ``[batch, heads, source_length, head_size]``.
            lengths: valid source tokens of each.
        """
        sources = {
            state.name: encoded[state.source] for state in self._states if state.source is not None
        }
        moves = [
            Move(index, row, 0, length)
            for index, (row, length) in enumerate(zip(rows, lengths, strict=True))
        ]
        self._memory.write(sources, moves)

    def reset(self, row: int) -> None:
        """Clears what a new sequence would otherwise inherit: the recurrent states."""
        self._memory.zero(self._names[StateRole.RECURRENT], row)

    def clear(self, row: int) -> None:
        """Zeroes all that ``row`` holds: what is not finite must not reach its next owner."""
        for names in self._names.values():
            self._memory.zero(names, row)

    def save(self, first: int, count: int) -> None:
        """Keeps the recurrent states of ``count`` rows from ``first``, until it is called again."""
        kept = Move(first, self._num_slots + first, num_rows=count)
        if count:
            self._memory.move(self._names[StateRole.RECURRENT], [kept])

    def restore(self, first: int, count: int) -> None:
        """Puts back what :meth:`save` kept of these rows."""
        kept = Move(self._num_slots + first, first, num_rows=count)
        if count:
            self._memory.move(self._names[StateRole.RECURRENT], [kept])

    def copy(self, source: int, target: int, span: Span) -> None:
        """Copies a span of row ``source`` to row ``target``, and the recurrent states whole."""
        self.move([(source, target, span)])

    def rotate(self, rows: Sequence[int], spans: Sequence[Span], *, keep_first: bool) -> None:
        """Moves what each row holds to the row before it.

        Args:
            rows: the content of ``rows[i + 1]`` goes to ``rows[i]``.
            spans: what each row holds.
            keep_first: the first row's content goes to the last, else it is lost.
        """
        moves = list(zip(rows[1:], rows, spans[1:], strict=False))
        if keep_first and len(rows) > 1:
            moves.append((rows[0], rows[-1], spans[0]))
        self.move(moves)

    def move(self, moves: Sequence[tuple[int, int, Span]]) -> None:
        """Copies all at once. Each is a row, where it goes, and what of it."""
        if not moves:
            return
        tokens = [Move(a, b, span.first_token, span.num_tokens) for a, b, span in moves]
        source = [Move(a, b, 0, span.num_source_tokens) for a, b, span in moves]
        for role, parts in ((StateRole.KV, tokens), (StateRole.CROSS, source)):
            if any(part.start < part.stop for part in parts):
                self._memory.move(self._names[role], parts)
        self._memory.move(self._names[StateRole.RECURRENT], tokens)
