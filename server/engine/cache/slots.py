"""Which sequence owns which row of the cache: integers only."""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """The content of row ``source`` goes to row ``target``."""

    source: int
    target: int


class SlotTable:
    """Rows ``0 … num_used-1`` are owned, without holes; the others are free."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ids: list[int] = []
        self._row_of: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"SlotTable({self.num_used}/{self.capacity})"

    @property
    def num_used(self) -> int:
        return len(self._ids)

    @property
    def num_free(self) -> int:
        return self.capacity - len(self._ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Owners in order of rows."""
        return tuple(self._ids)

    def row_of(self, id_: int) -> int:
        """The row that ``id_`` owns. Raises ``KeyError`` if it owns none."""
        return self._row_of[id_]

    def acquire(self, id_: int, *, before_last: bool = False) -> Move | None:
        """Gives ``id_`` a row. Raises ``ValueError`` if there is none, or it has one.

        Args:
            id_: the new owner.
            before_last: it gets the last owner's row (which is not decodable), and that
                one the next.

        Returns:
            The copy to make, if any. The table already shows its result.
        """
        if not self.num_free:
            raise ValueError("no free slot")
        if id_ in self._row_of:
            raise ValueError(f"sequence {id_} has a slot already")
        row = len(self._ids)
        move = None
        if before_last and row:
            last = self._ids[-1]
            self._row_of[last] = row
            self._ids.insert(row - 1, id_)
            row, move = row - 1, Move(row - 1, row)
        else:
            self._ids.append(id_)
        self._row_of[id_] = row
        self.check()
        return move

    def release(self, id_: int, *, keep_last: bool = False) -> tuple[int, ...]:
        """Frees the row of ``id_`` and closes the hole.

        Args:
            id_: the owner.
            keep_last: the last row's owner stays the last (it is not decodable).

        Returns:
            Rows, the first that of ``id_``, the last the one that is free now: the content
            of each goes to the one before it. The table already shows the result.
        """
        row = self._row_of.pop(id_)
        last = len(self._ids) - 1
        cycle = [row]
        if keep_last and row < last - 1:
            cycle.append(last - 1)
        if cycle[-1] < last:
            cycle.append(last)
        for target, source in itertools.pairwise(cycle):
            self._ids[target] = self._ids[source]
            self._row_of[self._ids[target]] = target
        self._ids.pop()
        self.check()
        return tuple(cycle)

    def check(self) -> None:
        """Raises ``RuntimeError`` unless every used row has exactly one owner."""
        if len(self._ids) != len(self._row_of) or len(self._ids) > self.capacity:
            raise RuntimeError(f"slots lost: {self._ids} against {self._row_of}")
