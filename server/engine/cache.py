"""The arrays behind the slots: allocated once, bound by pointer, updated in place."""

import numpy as np

from model.bundle import StateRole, StateSpec
from server.backend.base import Array
from server.engine.slots import Move


class SlotCache:
    """One array ``[slots, *slot shape]`` for each state of a decode graph.

    Pages of a row that no token reached are never touched, so they cost no memory.

    Args:
        states: of the decode graph.
        num_slots: rows.
        max_length: tokens that a ``KV`` state holds per row.
        max_source_length: tokens that a ``CROSS`` state holds per row.
    """

    def __init__(
        self,
        states: tuple[StateSpec, ...],
        num_slots: int,
        max_length: int,
        max_source_length: int,
    ) -> None:
        sizes = {"length": max_length, "source_length": max_source_length}
        self._states = states
        self._arrays: dict[str, Array] = {
            state.name: np.zeros(
                (num_slots, *(sizes[d] if isinstance(d, str) else d for d in state.shape)),
                state.dtype.value,
            )
            for state in states
        }

    def rows(self, first: int, count: int) -> dict[tuple[str, str], Array]:
        """Views of ``count`` rows from ``first``, by the graph's (input, output) names."""
        return {
            (state.input, state.output): self._arrays[state.name][first : first + count]
            for state in self._states
        }

    def write_cross(self, row: int, encoded: dict[str, Array], index: int, length: int) -> None:
        """Stores an encoder's memory.

        Args:
            row: of the sequence.
            encoded: outputs of ``encode``, each ``[batch, heads, source_length, head_size]``.
            index: of the sequence in that batch.
            length: its valid source tokens.
        """
        for state in self._states:
            if state.source is not None:
                self._arrays[state.name][row, :, :length] = encoded[state.source][index, :, :length]

    def reset(self, row: int) -> None:
        """Clears what a new sequence would otherwise inherit: the recurrent states."""
        for state in self._states:
            if state.role == StateRole.RECURRENT:
                self._arrays[state.name][row] = 0

    def move(self, move: Move, num_tokens: int, num_source_tokens: int) -> None:
        """Copies what a row holds: ``num_tokens`` of ``KV``, ``num_source_tokens`` of ``CROSS``."""
        for state in self._states:
            array = self._arrays[state.name]
            if state.role == StateRole.RECURRENT:
                array[move.target] = array[move.source]
            else:
                valid = num_tokens if state.role == StateRole.KV else num_source_tokens
                array[move.target, :, :valid] = array[move.source, :, :valid]
