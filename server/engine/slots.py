"""Which sequence owns which row of the cache: integers only."""

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

    def acquire(self, id_: int) -> int:
        """Gives ``id_`` the next row. Raises ``ValueError`` if there is none, or it has one."""
        if not self.num_free:
            raise ValueError("no free slot")
        if id_ in self._row_of:
            raise ValueError(f"sequence {id_} has a slot already")
        self._row_of[id_] = len(self._ids)
        self._ids.append(id_)
        return self._row_of[id_]

    def release(self, id_: int, *, keep_last: bool = False) -> tuple[Move, ...]:
        """Frees the row of ``id_`` and closes the hole.

        Args:
            id_: the owner.
            keep_last: the last row's owner stays the last (it is not decodable).

        Returns:
            The copies to make, in order. The table already shows their result.
        """
        row = self._row_of.pop(id_)
        last = len(self._ids) - 1
        hole, moves = row, []
        if keep_last and row < last - 1:
            moves.append(Move(last - 1, row))
            hole = last - 1
        if hole < last:
            moves.append(Move(last, hole))
        for move in moves:
            self._ids[move.target] = self._ids[move.source]
            self._row_of[self._ids[move.target]] = move.target
        self._ids.pop()
        self.check()
        return tuple(moves)

    def check(self) -> None:
        """Raises ``RuntimeError`` unless every used row has exactly one owner."""
        if len(self._ids) != len(self._row_of) or len(self._ids) > self.capacity:
            raise RuntimeError(f"slots lost: {self._ids} against {self._row_of}")
