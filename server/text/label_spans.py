"""From the logits of spans of words to entities, as the package ``gliner`` decodes them.

The best spans are taken first; a span that conflicts with a taken one is left out (Zaratiana et al.
2023, section 2.2).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

# Spans that are examined one by one before those that conflict are dropped together.
_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class SpanRules:
    """Which spans become entities.

    Attributes:
        min_score: the lowest score, 0 … 1.
        nested: whether entities may contain others.
        multi_label: whether several entities, with other labels, may have the same words.
    """

    min_score: float
    nested: bool = False
    multi_label: bool = False


@dataclass(frozen=True, slots=True)
class LabelledSpan:
    """The words ``first`` to ``last``, both included, with the index of a label."""

    first: int
    last: int
    label: int
    score: float


def join_windows(logits: Sequence[Floats], words: Sequence[range]) -> Floats:
    """The logits of a text, from those of its windows: ``[words, max_width, labels]``.

    A span has the logits of the window with the most words around it. The start of the first
    window and the end of the last one do not count as edges. A span in no window has -infinity.
    """
    start, stop = words[0].start, words[-1].stop
    max_width, num_labels = logits[0].shape[1:]
    joined = np.full((stop - start, max_width, num_labels), -np.inf, np.float32)
    most = np.full((stop - start, max_width), -1)
    for found, own in zip(logits, words, strict=True):
        firsts = np.arange(len(own))[:, None]
        lasts = firsts + np.arange(max_width)
        left = firsts if own.start > start else np.full_like(firsts, stop)
        right = len(own) - 1 - lasts + (stop if own.stop == stop else 0)
        around = np.where(lasts < len(own), np.minimum(left, right), -1)
        part = slice(own.start - start, own.stop - start)
        better = around > most[part]
        joined[part][better] = found[better]
        most[part][better] = around[better]
    return joined


def find_spans(logits: Floats, rules: SpanRules) -> list[LabelledSpan]:
    """The spans that become entities, in the order of their first words.

    ``logits [words, max_width, labels]``: index ``[i, k]`` is the span of words ``i`` to ``i + k``.
    """
    count, max_width, num_labels = logits.shape
    labels = np.arange(num_labels)
    if not rules.multi_label:  # the best label of a span excludes its others
        labels = logits.argmax(-1, keepdims=True)
        logits = np.take_along_axis(logits, labels, -1)
    labels = np.broadcast_to(labels, logits.shape).reshape(-1)
    scores = _sigmoid(logits)
    lasts = np.arange(count)[:, None] + np.arange(max_width)
    is_scored = (lasts < count)[..., None] & (logits > -np.inf)
    cells = np.flatnonzero((scores >= rules.min_score) & is_scored)
    own = scores.reshape(-1)[cells]
    order = np.argsort(-own, kind="stable")
    cells, own = cells[order], own[order]
    taken, spans = _Taken(count, max_width, rules), []
    while cells.size:
        size = max(_AT_ONCE, cells.size // 8)
        firsts, lasts = _ends(cells[:size] // logits.shape[-1], max_width)
        parts = (firsts, lasts, labels[cells[:size]], own[:size])
        for first, last, label, score in zip(*(part.tolist() for part in parts), strict=True):
            if taken.take(first, last):
                spans.append(LabelledSpan(first, last, label, score))
        cells, own = cells[size:], own[size:]
        is_free = ~taken.conflicts(*_ends(cells // logits.shape[-1], max_width))
        cells, own = cells[is_free], own[is_free]
    return sorted(spans, key=lambda span: span.first)


def _ends(spans: Ids, max_width: int) -> tuple[Ids, Ids]:
    """The first and the last word of spans with the indices ``first * max_width + width``."""
    firsts, widths = np.divmod(spans, max_width)
    return firsts, firsts + widths


class _Taken:
    """The spans that are taken, of a text of ``num_words``."""

    def __init__(self, num_words: int, max_width: int, rules: SpanRules) -> None:
        self._nested, self._multi_label = rules.nested, rules.multi_label
        self._max_width = max_width
        # Python reads single items of these, and NumPy all of them, from the same memory.
        self._is_taken = bytearray(num_words * max_width)
        self._is_occupied = bytearray(num_words + max_width)
        # By the word that spans begin or end with: the other end of the longest one.
        self._furthest_last = array("q", [-1]) * (num_words + max_width)
        self._furthest_first = array("q", [num_words]) * (num_words + max_width)

    def take(self, first: int, last: int) -> bool:
        """Takes a span unless it conflicts with one that is taken; returns whether it did."""
        index = first * self._max_width + last - first
        if self._is_taken[index]:
            return self._multi_label
        if self._crosses(first, last):
            return False
        self._is_taken[index] = 1
        self._is_occupied[first : last + 1] = bytes([1]) * (last + 1 - first)
        self._furthest_last[first] = max(self._furthest_last[first], last)
        self._furthest_first[last] = min(self._furthest_first[last], first)
        return True

    def _crosses(self, first: int, last: int) -> bool:
        """Whether a span overlaps a taken one; if they may nest, whether neither contains one."""
        if not self._nested:
            return 1 in self._is_occupied[first : last + 1]
        begins_inside = max(self._furthest_last[first + 1 : last + 1], default=-1) > last
        return begins_inside or min(self._furthest_first[first:last], default=first) < first

    def conflicts(self, firsts: Ids, lasts: Ids) -> npt.NDArray[np.bool_]:
        """For each span, whether it conflicts with one that is taken."""
        is_taken = np.frombuffer(self._is_taken, bool)[firsts * self._max_width + lasts - firsts]
        found: npt.NDArray[np.bool_] = is_taken & (not self._multi_label)
        is_occupied = np.frombuffer(self._is_occupied, bool)
        furthest_last = np.frombuffer(self._furthest_last, np.int64)
        furthest_first = np.frombuffer(self._furthest_first, np.int64)
        for offset in range(self._max_width):
            word = firsts + offset
            crosses = is_occupied[word]
            if self._nested:
                crosses = (word < lasts) & (furthest_first[word] < firsts)
                crosses |= (offset > 0) & (furthest_last[word] > lasts)
            found |= (word <= lasts) & crosses & ~is_taken
        return found


def _sigmoid(logits: Floats) -> Floats:
    scores: Floats = 0.5 * (1 + np.tanh(0.5 * logits))  # does not overflow
    return scores
