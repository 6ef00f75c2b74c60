"""The texts of an encoder's next batch, chosen by padded cost: a pure function."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one batch."""

    max_padded_tokens: int  # number of texts times the length of the longest
    max_padding: float = 1.25  # padded over real tokens


def form_batch(
    lengths: Sequence[int], limits: BatchLimits, *, leaves_half: bool = True
) -> list[int]:
    """The texts of the next batch. A pure function.

    The first text always runs; the texts nearest to it in length join it while the batch stays
    within ``limits``. A text over the limit runs alone.

    Args:
        lengths: tokens of each waiting text, in order of arrival after the first; not empty.
        limits: of the batch.
        leaves_half: if less than two full batches of tokens wait, takes half of the waiting tokens,
            but at least half a full batch. Callers of the first half then submit their next texts
            while the other half runs.

    Returns:
        Indices into ``lengths``, 0 before the others.
    """
    waiting = np.array(lengths, np.int64)
    full = limits.max_padded_tokens
    max_padded = full
    if leaves_half:
        max_padded = min(full, max(full // 2, int(waiting.sum()) // 2))
    order = np.argsort(np.abs(waiting - waiting[0]), kind="stable")
    nearest = waiting[order]
    padded = np.maximum.accumulate(nearest) * np.arange(1, len(nearest) + 1)
    fits = (padded <= max_padded) & (padded <= limits.max_padding * nearest.cumsum())
    fits[0] = True
    count = len(fits) if fits.all() else int(fits.argmin())
    return [int(index) for index in order[:count]]
