"""What free rows of the cache still hold, so that a new prompt need not be read twice."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# A chunk over a cache runs alone, while fresh prompts share a run: less is not worth it.
MIN_REUSED_TOKENS = 32


class PrefixMatch(NamedTuple):
    """The first ``num_tokens`` of a prompt are those that ``row`` holds."""

    row: int
    num_tokens: int


class PrefixCache:
    """The tokens in each free row; nothing where ``is_enabled`` is false."""

    def __init__(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._tokens: dict[int, tuple[int, ...]] = {}

    def keep(self, row: int, tokens: Sequence[int]) -> bool:
        """Whether ``row``, which becomes free, keeps ``tokens``; else it holds nothing."""
        self._tokens.pop(row, None)
        if self.is_enabled and len(tokens) >= MIN_REUSED_TOKENS:
            self._tokens[row] = tuple(tokens)
            return True
        return False

    def forget(self, row: int) -> None:
        """``row`` was given to a sequence."""
        self._tokens.pop(row, None)

    def num_tokens(self, row: int) -> int:
        """How many a free row holds."""
        return len(self._tokens.get(row, ()))

    def cut(self, row: int, num_tokens: int) -> None:
        """What ``row`` holds from ``num_tokens`` on is lost."""
        if row in self._tokens:
            self._tokens[row] = self._tokens[row][:num_tokens]

    def rows(self, first: int) -> list[tuple[int, Sequence[int]]]:
        """Free rows from ``first`` on, with their tokens."""
        return [(row, tokens) for row, tokens in self._tokens.items() if row >= first]


def best_match(
    prompt: Sequence[int], rows: Iterable[tuple[int, Sequence[int]]]
) -> PrefixMatch | None:
    """The row with the longest common prefix, if it is worth it.

    At least one token of the prompt is left to read: its logits are wanted.
    """
    best = None
    for row, tokens in rows:
        limit = min(len(prompt) - 1, len(tokens))
        if limit < (MIN_REUSED_TOKENS if best is None else best.num_tokens + 1):
            continue
        size = common_prefix(prompt, tokens, limit)
        if size >= MIN_REUSED_TOKENS and (best is None or size > best.num_tokens):
            best = PrefixMatch(row, size)
    return best


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """How many of the first ``limit`` items are equal, by bisection: slices compare fast."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
