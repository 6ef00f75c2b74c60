"""Whether the decode step after one may start before it is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.engine.requests.sequence import DecodingSequence


class Ahead(Protocol):
    """What is known of the next step: first without the best tokens of this one, then with them."""

    def is_possible(self) -> bool:
        """Whether the next step may be over the best tokens of this one, which are not known."""
        ...

    def is_likely(self, best: Sequence[int]) -> bool:
        """Whether it probably is, if it was possible: ``best`` has a token for each row."""
        ...


@dataclass(frozen=True, slots=True)
class SequencesAhead:
    """Implements :class:`Ahead`: the same sequences decode their best tokens next.

    They do, if each goes on, as far as is known. A step that reads nothing of this step's logits
    but the best tokens may overwrite them.

    ``may_continue``: whether there is no other work.
    """

    sequences: Sequence[DecodingSequence]
    may_continue: Callable[[], bool]

    def is_possible(self) -> bool:
        return self.may_continue() and all(sequence.may_go_on for sequence in self.sequences)

    def is_likely(self, best: Sequence[int]) -> bool:
        # Between two steps of the device: rows of padding, which follow, are left out.
        pairs = zip(self.sequences, best, strict=False)
        return self.may_continue() and all(s.goes_on_with(token) for s, token in pairs)


class _Never:
    def is_possible(self) -> bool:
        return False

    def is_likely(self, best: Sequence[int]) -> bool:
        del best
        return False


NOT_AHEAD: Ahead = _Never()
"""No step starts before it is asked for."""
