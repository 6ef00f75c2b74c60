"""Ends a growing text just before the first stop string in it."""

from collections.abc import Sequence


class StopStrings:
    """Holds back text that may be the beginning of a stop string.

    Args:
        stops: none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_matched = False

    def push(self, piece: str) -> str:
        """The text that is safe to show. After a match, always empty."""
        if self.is_matched:
            return ""
        text = self._held + piece
        matches = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            self.is_matched = True
            self._held = ""
            return text[: min(matches)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
