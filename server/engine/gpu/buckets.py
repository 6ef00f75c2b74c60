"""Sizes of recorded decode steps (CUDA graphs). Steps are padded to a bucket. Pure functions."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

# Attention over fewer tokens costs next to nothing, so the smallest bucket has this many.
_MIN_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Bucket:
    """A decode step of ``num_rows`` sequences and at most ``num_tokens`` tokens each."""

    num_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """All combinations of these numbers of rows and tokens, both ascending."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, num_slots: int, max_length: int) -> "Buckets":
        """Rows 1, 2, 3, 4, 6, 8, 12, 16, 24, …, so that at most a third of a step is padding.

        Tokens double, from 128.
        """
        rows, size = [], 1
        while size < num_slots:
            rows.append(size)
            size += max(1, (1 << (size.bit_length() - 1)) // 2)
        tokens, length = [], _MIN_TOKENS
        while length < max_length:
            tokens.append(length)
            length *= 2
        return cls((*rows, num_slots), (*tokens, max_length))

    def __len__(self) -> int:
        return len(self.rows) * len(self.tokens)

    def __iter__(self) -> Iterator[Bucket]:
        """The largest first: smaller buckets then reuse the memory that larger ones allocated."""
        for num_rows in reversed(self.rows):
            for num_tokens in reversed(self.tokens):
                yield Bucket(num_rows, num_tokens)

    def rows_for(self, num_rows: int) -> int:
        """The smallest number of rows in a bucket that holds ``num_rows``."""
        return self.rows[bisect_left(self.rows, num_rows)]

    def tokens_for(self, num_tokens: int) -> int:
        """The smallest number of tokens in a bucket that holds ``num_tokens``."""
        return self.tokens[bisect_left(self.tokens, num_tokens)]
