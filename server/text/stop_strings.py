"""Ends a streamed text before its first stop string."""

from collections.abc import Sequence


class StopStrings:
    """Holds back text that may begin a stop string.

    Args:
        stops: the stop strings; none is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_matched = False

    def push(self, piece: str) -> str:
        """Adds ``piece``. Returns the text that is safe to send; after a match, always empty."""
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
        """The text held back so far; call it when no more text follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
