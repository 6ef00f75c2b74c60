"""Decides whether the next decode step may start before the scheduler asks for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.engine.requests.sequence import DecodingSequence


class Ahead(Protocol):
    """Predicts the next step, before and after the best tokens of the current step are known."""

    def is_possible(self) -> bool:
        """Whether the next step may run over the best tokens of this one, still unknown."""
        ...

    def is_likely(self, best: Sequence[int]) -> bool:
        """Whether a possible next step is likely. ``best``: the best token of each row."""
        ...


@dataclass(frozen=True, slots=True)
class SequencesAhead:
    """Implements :class:`Ahead`: predicts that the same sequences decode their best tokens next.

    The prediction holds if every sequence continues. The host then reads nothing of this step's
    logits but the best tokens, so the next step may overwrite them.

    ``may_continue``: returns whether there is no other work.
    """

    sequences: Sequence[DecodingSequence]
    may_continue: Callable[[], bool]

    def is_possible(self) -> bool:
        return self.may_continue() and all(sequence.may_run_ahead for sequence in self.sequences)

    def is_likely(self, best: Sequence[int]) -> bool:
        # The device waits for this. ``zip`` leaves out the rows of padding, which come last.
        pairs = zip(self.sequences, best, strict=False)
        return self.may_continue() and all(s.continues_with(token) for s, token in pairs)


class _Never:
    def is_possible(self) -> bool:
        return False

    def is_likely(self, best: Sequence[int]) -> bool:
        del best
        return False


NOT_AHEAD: Ahead = _Never()
"""No step starts before it is asked for."""
