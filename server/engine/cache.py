"""The arrays behind the slots: allocated once, bound by pointer, updated in place."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.bundle import StateRole, StateSpec
from server.backend.base import Array


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a row: tokens ``first_token … num_tokens-1`` of ``KV``, and the source's."""

    num_tokens: int
    num_source_tokens: int = 0
    first_token: int = 0


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

    @property
    def holds_prefixes(self) -> bool:
        """Whether a row's first tokens are of use to another sequence that begins with them."""
        return all(state.role == StateRole.KV for state in self._states)

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

    def clear(self, row: int) -> None:
        """Zeroes all that ``row`` holds: what is not finite must not reach its next owner."""
        for array in self._arrays.values():
            array[row] = 0

    def recurrent(self, first: int, count: int) -> dict[str, Array]:
        """Copies of the recurrent states of ``count`` rows from ``first``, by name."""
        return {
            state.name: self._arrays[state.name][first : first + count].copy()
            for state in self._states
            if state.role == StateRole.RECURRENT
        }

    def restore(self, first: int, saved: dict[str, Array]) -> None:
        """Puts back what :meth:`recurrent` gave."""
        for name, array in saved.items():
            self._arrays[name][first : first + len(array)] = array

    def copy(self, source: int, target: int, span: Span) -> None:
        """Copies a span of row ``source`` to row ``target``, and the recurrent states whole."""
        for state in self._states:
            array = self._arrays[state.name]
            if state.role == StateRole.RECURRENT:
                array[target] = array[source]
                continue
            start, stop = span.first_token, span.num_tokens
            if state.role == StateRole.CROSS:
                start, stop = 0, span.num_source_tokens
            if start < stop:
                array[target, :, start:stop] = array[source, :, start:stop]

    def rotate(self, rows: Sequence[int], spans: Sequence[Span], *, keep_first: bool) -> None:
        """Moves what each row holds to the row before it.

        Args:
            rows: the content of ``rows[i + 1]`` goes to ``rows[i]``.
            spans: what each row holds.
            keep_first: the first row's content goes to the last, else it is lost.
        """
        kept = None
        if keep_first and len(rows) > 1:
            kept = self._content(rows[0], spans[0])
        for target, source, span in zip(rows, rows[1:], spans[1:], strict=False):
            self.copy(source, target, span)
        if kept is not None:
            for name, content in kept.items():
                array = self._arrays[name]
                array[rows[-1]][tuple(map(slice, content.shape))] = content

    def _content(self, row: int, span: Span) -> dict[str, Array]:
        content = {}
        for state in self._states:
            array = self._arrays[state.name][row]
            if state.role == StateRole.KV:
                array = array[:, : span.num_tokens]
            elif state.role == StateRole.CROSS:
                array = array[:, : span.num_source_tokens]
            content[state.name] = array.copy()
        return content
