"""Logits of a run, on the host or on a device: rows are copied to the host only on demand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from server.constraint import Floats
from server.runtime.host_ops import TopTokens
from server.runtime.memory import Array, Tensor

MAX_TOP = 64
"""The most tokens that :meth:`Logits.top` finds."""


class Logits(Protocol):
    """Logits ``[rows, vocabulary]``, one row for each sequence of the run."""

    @property
    def tensor(self) -> Tensor:
        """All rows, in the memory where the run left them. Valid until the next run."""
        ...

    @property
    def padded(self) -> Tensor | None:
        """All rows, padding included, at an address that runs of as many rows share.

        None if the rows have no fixed address.
        """
        ...

    def rows(self, indices: Sequence[int]) -> Floats:
        """Returns rows ``[len(indices), vocabulary]`` on the host, valid until the next run.

        ``indices``: at least one, ascending.
        """
        ...

    def kept_rows(self, indices: Sequence[int]) -> Floats:
        """Returns :meth:`rows` that stay valid until their sequence runs again, in a later step."""
        ...

    @property
    def knows_best(self) -> bool:
        """Whether :meth:`best` needs no copy of the rows to the host."""
        ...

    def best(self, indices: Sequence[int]) -> list[int | None]:
        """Returns :func:`best_of` of these rows. ``indices``: as for :meth:`rows`."""
        ...

    @property
    def finds_top(self) -> bool:
        """Whether :meth:`top` finds up to :data:`MAX_TOP` tokens; else it returns None."""
        ...

    def top(
        self, indices: Sequence[int], count: int, targets: Sequence[int] | None = None
    ) -> list[TopTokens] | None:
        """Finds the ``count`` likeliest tokens of each row, or more, without a copy to the host.

        Args:
            indices: as for :meth:`rows`.
            count: at least one.
            targets: one token for each row, to return its log-probability too.

        Returns:
            None if the caller has to find them in :meth:`rows`. A row that is not finite has a
            total that is not finite.
        """
        ...


@dataclass(frozen=True, slots=True)
class HostLogits:
    """Implements :class:`Logits` over a contiguous array; neighbouring rows are a view."""

    array: Array
    padded = None
    finds_top = False

    @property
    def tensor(self) -> Tensor:
        return Tensor.of(self.array)

    @property
    def knows_best(self) -> bool:
        return True

    def rows(self, indices: Sequence[int]) -> Floats:
        first, last = indices[0], indices[-1]
        are_neighbours = last - first + 1 == len(indices)
        chosen = self.array[first : last + 1] if are_neighbours else self.array[list(indices)]
        return chosen.astype(np.float32, copy=False)

    def kept_rows(self, indices: Sequence[int]) -> Floats:
        return self.rows(indices)

    def best(self, indices: Sequence[int]) -> list[int | None]:
        return best_of(self.rows(indices))

    def top(self, indices: Sequence[int], count: int, targets: Sequence[int] | None = None) -> None:
        del indices, count, targets


def best_of(logits: Floats) -> list[int | None]:
    """Returns the likeliest token of each row of ``[rows, vocabulary]``; None if it is not finite.

    NumPy's argmax returns the index of a NaN, or else of an infinity, if the row has one.
    """
    best = logits.argmax(axis=-1).tolist()
    return [
        token if math.isfinite(logits.item(row, token)) else None for row, token in enumerate(best)
    ]
