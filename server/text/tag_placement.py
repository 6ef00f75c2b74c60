"""Places a source text's inline elements in its translation, by word alignments."""

import html
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from server.text.markup import Element

_WORD = re.compile(r"\w+|[^\w\s]")
_PUNCTUATION_WEIGHT = 0.25
_SIBLING_WEIGHT = 2.0


@dataclass(frozen=True, slots=True)
class AlignedSpan:
    """A span of the source and the aligned span of the translation, in characters."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int


@dataclass(frozen=True, slots=True)
class _Word:
    """A word or punctuation mark of the translation, and its position in the source."""

    start: int
    end: int
    source: float
    weight: float


def place_tags(
    source: str, translation: str, elements: Sequence[Element], spans: Iterable[AlignedSpan]
) -> str:
    """Returns the translation as HTML: escaped, with every tag of the source once.

    An element covers the interval of the translation that maximizes the weighted number of words
    from its text minus that of other words. An element that covers all of the source covers all of
    the translation. An element without words keeps its place between words.

    Args:
        source: the source text.
        translation: the translation, as plain text.
        elements: the outermost inline elements of the source.
        spans: the alignments.
    """
    words = _words(translation, list(spans))
    return _render(source, (0, len(source)), translation, (0, len(translation)), elements, words)


def escaped(text: str) -> str:
    """Escapes text for HTML."""
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")


def _words(translation: str, spans: list[AlignedSpan]) -> list[_Word]:
    spans.sort(key=lambda span: span.target_start)
    starts = [span.target_start for span in spans]
    words = []
    for found in _WORD.finditer(translation):
        start, end = found.span()
        last = max(bisect_left(starts, end) - 1, 0)
        if not spans:
            continue
        # Spans do not overlap in the target, so those of this word are consecutive and end at last.
        first = last
        while first > 0 and spans[first - 1].target_end > start:
            first -= 1
        best = max(
            spans[first : last + 1],
            key=lambda span: min(span.target_end, end) - max(span.target_start, start),
        )
        middle = (best.source_start + best.source_end) / 2
        words.append(_Word(start, end, middle, 1.0 if found[0].isalnum() else _PUNCTUATION_WEIGHT))
    return words


def _render(
    source: str,
    source_range: tuple[int, int],
    text: str,
    target_range: tuple[int, int],
    elements: Sequence[Element],
    words: Sequence[_Word],
) -> str:
    """Renders ``target_range`` of the translation with the ``elements`` of ``source_range``."""
    low, high = target_range
    inside = [word for word in words if low <= word.start and word.end <= high]
    placed: list[tuple[int, int, Element]] = []
    for element in elements:
        span = _covered(source, source_range, target_range, element)
        if span is None:
            span = _best_interval(element, elements, inside, [(a, b) for a, b, _ in placed])
        if span is None:
            at = _position(element.start, inside, target_range)
            span = (at, at)
        placed.append((*span, element))
    placed.sort(key=lambda item: item[:2])
    parts = []
    position = low
    for begin, end, element in placed:
        start = max(begin, position)
        stop = max(end, start)
        parts.append(escaped(text[position:start]))
        parts.append(element.begin.source)
        if element.end is not None:
            own = (element.start, element.stop)
            parts.append(_render(source, own, text, (start, stop), element.children, words))
            parts.append(element.end.source)
        position = stop
    parts.append(escaped(text[position:high]))
    return "".join(parts)


def _covered(
    source: str, source_range: tuple[int, int], target_range: tuple[int, int], element: Element
) -> tuple[int, int] | None:
    """``target_range`` if the element contains all of the source's words, else ``None``."""
    first, last = source_range
    outside = source[first : element.start] + source[element.stop : last]
    if element.end is None or any(map(str.isalnum, outside)):
        return None
    if not any(map(str.isalnum, source[element.start : element.stop])):
        return None
    return target_range


def _best_interval(
    element: Element,
    siblings: Sequence[Element],
    words: Sequence[_Word],
    taken: Sequence[tuple[int, int]],
) -> tuple[int, int] | None:
    """The span of the words with the highest sum of weights (Kadane's algorithm)."""
    if element.end is None or element.start == element.stop:
        return None
    best_sum = current = 0.0
    best: tuple[int, int] | None = None
    begin = 0
    others = [each for each in siblings if each is not element and each.start < each.stop]
    for word in words:
        if any(start < word.end and word.start < end for start, end in taken):
            current = 0.0
            continue
        value = word.weight
        if not element.start <= word.source < element.stop:
            is_other = any(each.start <= word.source < each.stop for each in others)
            value *= -_SIBLING_WEIGHT if is_other else -1.0
        if current <= 0:
            current, begin = 0.0, word.start
        current += value
        if current > best_sum:
            best_sum, best = current, (begin, word.end)
    return best


def _position(at: int, words: Sequence[_Word], target_range: tuple[int, int]) -> int:
    """The boundary that best separates words from before and after ``at`` in the source."""
    if not words:
        return target_range[0]
    signs = [word.weight * (1 if word.source < at else -1) for word in words]
    sums = [0.0, *accumulate(signs)]
    best = max(range(len(sums)), key=sums.__getitem__)
    if best == 0:
        return target_range[0]
    return words[best].start if best < len(words) else target_range[1]
