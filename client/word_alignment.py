"""Derives word alignments from token alignments."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from client.results import Alignment

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class WordAlignment:
    """A word of the source and the words of the output that attend to it most, in their order."""

    source: str
    targets: tuple[str, ...]


def align_words(
    source: str, target: str, alignments: Sequence[Alignment]
) -> tuple[WordAlignment, ...]:
    """The words of ``source`` that any word of ``target`` attends to, in the order of the source.

    White space separates words. A word of several tokens may be aligned with several words.
    """
    sources, targets = _Words(source), _Words(target)
    found: dict[int, set[int]] = {}
    for each in alignments:
        source_word = sources.at(each.source_start, each.source_end)
        target_word = targets.at(each.target_start, each.target_end)
        if source_word is not None and target_word is not None:
            found.setdefault(source_word, set()).add(target_word)
    return tuple(
        WordAlignment(sources.words[index], tuple(targets.words[each] for each in sorted(aligned)))
        for index, aligned in sorted(found.items())
    )


class _Words:
    """The words of a text."""

    def __init__(self, text: str) -> None:
        matches = list(_WORD.finditer(text))
        self.words = [match[0] for match in matches]
        self._spans = [match.span() for match in matches]
        self._starts = [match.start() for match in matches]

    def at(self, start: int, end: int) -> int | None:
        """The index of the last word that ``text[start:end]`` overlaps; None if there is none."""
        index = bisect_right(self._starts, end - 1) - 1
        return index if index >= 0 and self._spans[index][1] > start else None
