"""The texts of an encoder's next batch, chosen by padded cost: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_OVERTAKEN = 3
# Texts to choose a batch from.
MAX_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one batch."""

    max_padded_tokens: int  # number of texts times the length of the longest
    max_padding: float = 1.25  # padded over real tokens


def choose_first(are_bulk: Sequence[bool], num_overtaken: int) -> int:
    """The text that the next batch must contain. A pure function.

    The oldest interactive text comes first, but after ``MAX_OVERTAKEN`` batches in succession that
    passed over the oldest text, the oldest text does.

    Args:
        are_bulk: whether each waiting text is bulk work, in order of arrival; not empty.
        num_overtaken: how often in succession the oldest text was not chosen.

    Returns:
        An index into ``are_bulk``.
    """
    if num_overtaken >= MAX_OVERTAKEN:
        return 0
    return next((index for index, is_bulk in enumerate(are_bulk) if not is_bulk), 0)


def form_batch(lengths: Sequence[int], limits: BatchLimits, first: int = 0) -> tuple[int, ...]:
    """The texts of the next batch. A pure function.

    ``first`` always runs; the texts nearest to it in length join it while the batch stays within
    ``limits``. A text over the limit runs alone.

    If less than two full batches of tokens wait, the batch takes half of the waiting tokens, but at
    least half a full batch. Callers of the first half then submit their next texts while the other
    half runs.

    Args:
        lengths: tokens of each waiting text, in order of arrival; not empty.
        limits: of the batch.
        first: an index into ``lengths``.

    Returns:
        Indices into ``lengths``, ``first`` before the others.
    """
    full = limits.max_padded_tokens
    max_padded = min(full, max(full // 2, sum(lengths) // 2))
    longest = total = size = lengths[first]
    others = sorted(range(len(lengths)), key=lambda index: abs(lengths[index] - size))
    others.remove(first)
    batch = [first]
    for index in others:
        new_longest = max(longest, lengths[index])
        padded = new_longest * (len(batch) + 1)
        new_total = total + lengths[index]
        if padded > max_padded or padded > limits.max_padding * new_total:
            break
        batch.append(index)
        longest, total = new_longest, new_total
    return tuple(batch)
