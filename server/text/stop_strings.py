"""Ends a streamed text before its first stop string."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from server.text.detokenizer import StreamingDetokenizer


class StopStrings:
    """Holds back text that may begin a stop string.

    Args:
        stops: the stop strings; none may be empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._borders = _borders_of(self._stops)
        # For each stop string, the length of its longest prefix that ends the text so far.
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.match: str | None = None
        """The stop string that ended the text; the first of those at the same place."""

    @property
    def is_matched(self) -> bool:
        """Whether a stop string ended the text."""
        return self.match is not None

    def push(self, piece: str) -> str:
        """Adds ``piece``. Returns the text that is safe to send; after a match, always empty."""
        if self.is_matched:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        matches = {stop: at for stop in self._stops if (at := text.find(stop)) >= 0}
        if matches:
            self.match = min(matches, key=matches.__getitem__)
            self._held = ""
            return text[: matches[self.match]]
        for index, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            self._matched[index] = _advance(stop, borders, self._matched[index], piece)
        keep = max(self._matched, default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Returns the text held back so far. Call this when no more text follows."""
        held, self._held = self._held, ""
        return held


def stop_detector(
    text: StreamingDetokenizer, stops: Sequence[str], prefix: Iterable[int]
) -> Callable[[int], bool]:
    """Returns a function that adds a token to a text and returns whether it has a stop string.

    Args:
        text: an unused detokenizer for the whole text.
        stops: the stop strings; none may be empty.
        prefix: the first tokens of the text, in which stop strings do not count.
    """
    found = StopStrings(stops)
    for id_ in prefix:
        text.push(id_)

    def ends(id_: int) -> bool:
        found.push(text.push(id_))
        return found.is_matched

    return ends


def _advance(stop: str, borders: tuple[int, ...], matched: int, piece: str) -> int:
    """The length of the prefix of ``stop`` that ends a text after ``piece`` is added to it.

    Source: Knuth, Morris and Pratt 1977. The time is linear in the length of ``piece``.
    """
    for character in piece:
        while matched and stop[matched] != character:
            matched = borders[matched - 1]
        if stop[matched] == character:
            matched += 1
    return matched


@lru_cache(256)
def _borders_of(stops: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(_borders, stops))


def _borders(stop: str) -> tuple[int, ...]:
    """For each prefix of ``stop``, the length of its longest proper suffix that begins ``stop``."""
    borders, matched = [0] * len(stop), 0
    for index in range(1, len(stop)):
        while matched and stop[matched] != stop[index]:
            matched = borders[matched - 1]
        if stop[matched] == stop[index]:
            matched += 1
        borders[index] = matched
    return tuple(borders)
