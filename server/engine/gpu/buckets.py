"""Sizes that decode runs are padded to, so that each size can be recorded once: pure."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

# A row shorter than this costs next to nothing to attend to.
_SHORTEST = 128


@dataclass(frozen=True, slots=True)
class Bucket:
    """``num_rows`` run together; none holds more than ``num_tokens`` after the run."""

    num_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """All combinations of these, each ascending."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, num_slots: int, max_length: int) -> "Buckets":
        """Rows 1, 2, 3, 4, 6, 8, 12, 16, 24, …, of which a third is padding at most.

        Tokens double, from 128.
        """
        rows, size = [], 1
        while size < num_slots:
            rows.append(size)
            size += max(1, (1 << (size.bit_length() - 1)) // 2)
        tokens, length = [], _SHORTEST
        while length < max_length:
            tokens.append(length)
            length *= 2
        return cls((*rows, num_slots), (*tokens, max_length))

    def __len__(self) -> int:
        return len(self.rows) * len(self.tokens)

    def __iter__(self) -> Iterator[Bucket]:
        """The largest first: what they take of memory, the smaller ones use again."""
        for num_rows in reversed(self.rows):
            for num_tokens in reversed(self.tokens):
                yield Bucket(num_rows, num_tokens)

    def rows_for(self, num_rows: int) -> int:
        """The least size that holds ``num_rows``."""
        return self.rows[bisect_left(self.rows, num_rows)]

    def tokens_for(self, num_tokens: int) -> int:
        """The least length that holds ``num_tokens``."""
        return self.tokens[bisect_left(self.tokens, num_tokens)]
