"""Cached prefixes: tokens that slots still hold, so that a new prompt need not prefill them again.

After automatic prefix caching as in vLLM, but of whole slots: a slot that no longer runs keeps the
tokens of its last owner until it is given to another sequence.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# A prompt with cached tokens runs alone, while fresh prompts share a run. So reusing fewer tokens
# than this does not pay off.
MIN_REUSED_TOKENS = 32


class PrefixMatch(NamedTuple):
    """``slot`` holds the first ``num_tokens`` tokens of a prompt."""

    slot: int
    num_tokens: int


class PrefixCache:
    """The tokens of the cached prefixes, by slot. It stays empty unless ``is_enabled``."""

    def __init__(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._tokens: dict[int, tuple[int, ...]] = {}

    def is_worth_keeping(self, tokens: Sequence[int]) -> bool:
        """Whether a slot that is released keeps ``tokens``."""
        return self.is_enabled and len(tokens) >= MIN_REUSED_TOKENS

    def add(self, slot: int, tokens: Sequence[int]) -> None:
        """Records that ``slot`` holds ``tokens``."""
        self._tokens[slot] = tuple(tokens)

    def remove(self, slot: int) -> None:
        """Removes the prefix of ``slot``, if there is one."""
        self._tokens.pop(slot, None)

    def trim(self, slot: int, num_tokens: int) -> None:
        """Shortens the prefix of ``slot``, if there is one, to at most ``num_tokens``."""
        if slot in self._tokens:
            self._tokens[slot] = self._tokens[slot][:num_tokens]

    def prefixes(self, first_slot: int = 0) -> list[tuple[int, Sequence[int]]]:
        """The slots from ``first_slot`` on that hold a prefix, with its tokens."""
        return [(slot, tokens) for slot, tokens in self._tokens.items() if slot >= first_slot]


def best_match(
    prompt: Sequence[int], prefixes: Iterable[tuple[int, Sequence[int]]]
) -> PrefixMatch | None:
    """The slot with the longest common prefix; None if it is shorter than ``MIN_REUSED_TOKENS``.

    At least one token of the prompt is left to prefill, because its logits are needed.
    """
    best = None
    for slot, tokens in prefixes:
        limit = min(len(prompt) - 1, len(tokens))
        if limit < (MIN_REUSED_TOKENS if best is None else best.num_tokens + 1):
            continue
        size = common_prefix(prompt, tokens, limit)
        if size >= MIN_REUSED_TOKENS and (best is None or size > best.num_tokens):
            best = PrefixMatch(slot, size)
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
