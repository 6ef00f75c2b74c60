"""Sizes of recorded runs (CUDA graphs). Runs are padded to a bucket. Pure functions."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

# Attention over fewer tokens costs next to nothing, so the smallest bucket has this many.
_MIN_TOKENS = 128
# Limits of an encoder's buckets. Longer texts compute for longer than their kernel launches take.
_MIN_TEXT_TOKENS, _MAX_TEXT_TOKENS, _MAX_TEXTS = 16, 512, 128
# Rows of padding with at most this many tokens cost less than another run.
_MAX_PADDING = 512


@dataclass(frozen=True, slots=True)
class Bucket:
    """A run over ``num_rows`` sequences or texts, of at most ``num_tokens`` tokens each."""

    num_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of decode steps: every combination of ``rows`` and ``tokens``, both ascending."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, num_slots: int, max_length: int) -> "Buckets":
        """Makes buckets of 1, 2, 3, 4, 6, 8, 12, 16, 24, … rows: at most a third is padding.

        Tokens double, from 128 to ``max_length``.
        """
        tokens, length = [], _MIN_TOKENS
        while length < max_length:
            tokens.append(length)
            length *= 2
        return cls(_numbers(1, num_slots, 2), (*tokens, max_length))

    def __len__(self) -> int:
        return len(self.rows) * len(self.tokens)

    def __iter__(self) -> Iterator[Bucket]:
        """Yields the largest first: smaller buckets then reuse the memory of larger ones."""
        for num_rows in reversed(self.rows):
            for num_tokens in reversed(self.tokens):
                yield Bucket(num_rows, num_tokens)

    def rows_for(self, num_rows: int) -> int:
        """Returns the smallest number of rows of a bucket that is at least ``num_rows``."""
        return self.rows[bisect_left(self.rows, num_rows)]

    def tokens_for(self, num_tokens: int) -> int:
        """Returns the smallest number of tokens of a bucket that is at least ``num_tokens``."""
        return self.tokens[bisect_left(self.tokens, num_tokens)]


@dataclass(frozen=True, slots=True)
class TextBuckets:
    """The buckets of an encoder: combinations of ``rows`` texts and ``tokens``, both ascending.

    ``max_padded_tokens``: the most tokens of a bucket, padding included.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    max_padded_tokens: int

    @classmethod
    def of(
        cls, max_padded_tokens: int, max_length: int, max_rows: int = _MAX_TEXTS
    ) -> "TextBuckets":
        """Makes buckets of 1, 2, 3, 4, 6, 8, … texts of 16, 32, …, 128, 160, …, 512 tokens."""
        longest = min(max_length, max_padded_tokens, _MAX_TEXT_TOKENS)
        first = min(_MIN_TEXT_TOKENS, longest)
        most = min(max_padded_tokens // first, max_rows, _MAX_TEXTS)
        return cls(_numbers(1, most, 2), _numbers(first, longest, 4), max_padded_tokens)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Bucket]:
        """Yields the largest first, as :class:`Buckets` does."""
        for num_tokens in reversed(self.tokens):
            for num_rows in reversed(self.rows):
                if num_rows * num_tokens <= self.max_padded_tokens:
                    yield Bucket(num_rows, num_tokens)

    def tokens_for(self, num_tokens: int) -> int:
        """Returns the length to which buckets pad ``num_tokens``, or itself if it is too long."""
        index = bisect_left(self.tokens, num_tokens)
        return self.tokens[index] if index < len(self.tokens) else num_tokens

    def find(self, num_rows: int, num_tokens: int) -> Bucket | None:
        """Returns the smallest bucket for ``num_rows`` texts of up to ``num_tokens`` tokens."""
        index = bisect_left(self.rows, num_rows)
        if index == len(self.rows) or num_tokens > self.tokens[-1]:
            return None
        found = Bucket(self.rows[index], self.tokens_for(num_tokens))
        return found if found.num_rows * found.num_tokens <= self.max_padded_tokens else None

    def num_together(self, num_rows: int, num_tokens: int) -> int:
        """Returns how many of ``num_rows`` texts to run together: all, or as many as fill a bucket.

        A few rows of padding cost less than another run.
        """
        if num_tokens > self.tokens[-1]:
            return num_rows
        found = self.find(num_rows, num_tokens)
        if found is not None and (found.num_rows - num_rows) * found.num_tokens <= _MAX_PADDING:
            return num_rows
        length = self.tokens_for(num_tokens)
        filled = [n for n in self.rows if n <= num_rows and n * length <= self.max_padded_tokens]
        return filled[-1] if filled else num_rows


def _numbers(first: int, last: int, parts: int) -> tuple[int, ...]:
    """Counts from ``first`` to ``last``, in ``parts`` steps from each power of two to the next.

    No step is smaller than ``first``.
    """
    found, number = [], first
    while number < last:
        found.append(number)
        number += max(first, (1 << (number.bit_length() - 1)) // parts)
    return (*found, last)
