"""Chooses the texts of an encoder's next batch by padded cost: a pure function."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one batch."""

    max_padded_tokens: int  # number of texts times the length of the longest
    max_padding: float = 1.25  # ratio of padded to real tokens


def form_batch(
    lengths: Sequence[int], limits: BatchLimits, *, leaves_half: bool = True
) -> list[int]:
    """Chooses the texts of the next batch. A pure function.

    The first text always runs; the texts nearest to it in length join it while the batch stays
    within ``limits``. A text over the limit runs alone.

    Args:
        lengths: tokens of each waiting text, in order of arrival after the first; not empty.
        limits: the limits of the batch.
        leaves_half: if less than two full batches of tokens wait, takes half of the waiting tokens,
            but at least half a full batch. Callers of the first half then submit their next texts
            while the other half runs.

    Returns:
        Indices into ``lengths``; 0 comes first.
    """
    first, full = lengths[0], limits.max_padded_tokens
    max_padded = min(full, max(full // 2, sum(lengths) // 2)) if leaves_half else full
    chosen: list[int] = []
    longest = num_tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: abs(lengths[index] - first)):
        longest, num_tokens = max(longest, lengths[index]), num_tokens + lengths[index]
        padded = longest * (len(chosen) + 1)
        if chosen and padded > min(max_padded, limits.max_padding * num_tokens):
            break
        chosen.append(index)
    return chosen
