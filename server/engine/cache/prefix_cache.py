"""Cached prefixes: tokens that slots still hold, so that a new prompt need not prefill them again.

This is automatic prefix caching as in vLLM, but of whole slots: a slot that no longer runs keeps
the tokens of its last owner until another sequence gets it, or the prefix moves to another row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

# A prompt with cached tokens runs alone, while fresh prompts share a run. So reusing fewer tokens
# than this does not pay off.
MIN_REUSED_TOKENS = 32


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The tokens of a slot that does not run.

    Attributes:
        scope: only sequences of this scope may reuse them.
        key: see :func:`prefix_key`.
        tokens: at least ``MIN_REUSED_TOKENS``, unless it was trimmed.
        last_used: larger is later.
    """

    scope: str
    key: int
    tokens: tuple[int, ...]
    last_used: int


class PrefixCache:
    """The cached prefixes, by slot. It stays empty unless ``is_enabled``.

    ``are_whole``: a prompt reuses all tokens of a prefix or none. A recurrent state is that after
    all of them.
    """

    def __init__(self, *, is_enabled: bool, are_whole: bool = False) -> None:
        self.is_enabled = is_enabled
        self.are_whole = are_whole
        self._prefixes: dict[int, CachedPrefix] = {}
        self._num_uses = 0

    def copy(self) -> "PrefixCache":
        """Returns a cache with the same prefixes, to plan changes on."""
        copied = PrefixCache(is_enabled=self.is_enabled, are_whole=self.are_whole)
        copied._prefixes = dict(self._prefixes)
        copied._num_uses = self._num_uses
        return copied

    def items(self) -> list[tuple[int, CachedPrefix]]:
        """Returns all pairs of a slot and its prefix."""
        return list(self._prefixes.items())

    def get(self, slot: int) -> CachedPrefix | None:
        """Returns the prefix of ``slot``; None if it has none."""
        return self._prefixes.get(slot)

    def add(self, slot: int, scope: str, tokens: Sequence[int]) -> None:
        """Records that ``slot`` holds ``tokens``, at least ``MIN_REUSED_TOKENS``."""
        key = prefix_key(scope, tokens)
        if key is None:
            raise ValueError(f"{len(tokens)} tokens are too few for a cached prefix")
        self._prefixes[slot] = CachedPrefix(scope, key, tuple(tokens), self._next_use())

    def remove(self, slot: int) -> None:
        """Removes the prefix of ``slot``, if there is one."""
        self._prefixes.pop(slot, None)

    def move(self, source: int, target: int) -> None:
        """Moves the prefix of slot ``source`` to ``target``, and removes the one there."""
        self._prefixes[target] = self._prefixes.pop(source)

    def touch(self, slot: int) -> None:
        """Marks the prefix of ``slot``, if there is one, as the last used."""
        if slot in self._prefixes:
            self._prefixes[slot] = replace(self._prefixes[slot], last_used=self._next_use())

    def trim(self, slot: int, num_tokens: int) -> None:
        """Shortens the prefix of ``slot``, if there is one, to at most ``num_tokens``."""
        if slot in self._prefixes:
            prefix = self._prefixes[slot]
            self._prefixes[slot] = replace(prefix, tokens=prefix.tokens[:num_tokens])

    def row_for(self, slot: int, num_rows: int, keep: int | None = None) -> int | None:
        """Chooses the row to which the prefix of ``slot`` moves when a sequence needs the slot.

        It is the last free row, else the row of the least recently used prefix.

        Args:
            slot: the first slot that does not run; it holds a prefix.
            num_rows: the number of rows of the cache.
            keep: a row whose prefix must stay.

        Returns:
            None if the prefix of ``slot`` itself is the least recently used.
        """
        for row in range(num_rows - 1, slot, -1):
            if row not in self._prefixes:
                return row
        last_used = {row: prefix.last_used for row, prefix in self._prefixes.items() if row != keep}
        row = min(last_used, key=last_used.__getitem__, default=slot)
        return None if row == slot else row

    def covered_by(self, scope: str, tokens: Sequence[int]) -> list[int]:
        """Returns slots whose prefix is no longer than ``tokens``, which replace it."""
        key = prefix_key(scope, tokens)
        return [
            slot
            for slot, prefix in self._prefixes.items()
            if prefix.key == key
            and prefix.scope == scope
            and len(prefix.tokens) <= len(tokens)
            and self._replaces(tokens, prefix.tokens)
        ]

    def covers(self, scope: str, tokens: Sequence[int]) -> bool:
        """Whether a longer cached prefix replaces ``tokens``."""
        key = prefix_key(scope, tokens)
        return any(
            prefix.key == key
            and prefix.scope == scope
            and len(prefix.tokens) > len(tokens)
            and self._replaces(prefix.tokens, tokens)
            for prefix in self._prefixes.values()
        )

    def _replaces(self, tokens: Sequence[int], other: Sequence[int]) -> bool:
        """Whether ``other`` adds too little to ``tokens`` to be kept beside them."""
        if self.are_whole:
            return len(tokens) == len(other) and list(tokens) == list(other)
        num_common = max(len(other) - MIN_REUSED_TOKENS + 1, 0)
        return list(other[:num_common]) == list(tokens[:num_common])

    def _next_use(self) -> int:
        self._num_uses += 1
        return self._num_uses


def prefix_key(scope: str, tokens: Sequence[int]) -> int | None:
    """Hashes the scope and the first ``MIN_REUSED_TOKENS`` tokens; None if there are fewer.

    Token lists that can share a prefix have equal keys.
    """
    if len(tokens) < MIN_REUSED_TOKENS:
        return None
    return hash((scope, *tokens[:MIN_REUSED_TOKENS]))


def is_covered(tokens: Sequence[int], num_common: int) -> bool:
    """Whether too few of ``tokens`` come after the first ``num_common`` to be worth keeping."""
    return len(tokens) - num_common < MIN_REUSED_TOKENS


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Counts the equal leading items, up to ``limit``, by bisection: slices compare fast."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
