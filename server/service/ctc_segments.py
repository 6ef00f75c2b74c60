"""Divides the tokens of a window into words, at delimiters, and into phrases, at pauses."""

from collections.abc import Sequence
from typing import NamedTuple

from model.ctc import TokenRun

# A pause between two words that divides phrases: longer than those of stops within speech.
MIN_PAUSE_SECONDS = 0.5


class WordSpan(NamedTuple):
    """A word: the runs from ``start`` to before ``stop``."""

    start: int
    stop: int


class Phrase(NamedTuple):
    """Successive words, and the runs of the text, delimiters before the first word included."""

    words: list[WordSpan]
    text: WordSpan


def word_spans(runs: Sequence[TokenRun], delimiter: int | None) -> list[WordSpan]:
    """The words of a window; without a delimiter, all tokens are one."""
    spans: list[WordSpan] = []
    for index, run in enumerate(runs):
        if run.token == delimiter:
            continue
        if spans and spans[-1].stop == index:
            spans[-1] = WordSpan(spans[-1].start, index + 1)
        else:
            spans.append(WordSpan(index, index + 1))
    return spans


def phrases(
    runs: Sequence[TokenRun], delimiter: int | None, max_pause_frames: float
) -> list[Phrase]:
    """Divides a window where at least ``max_pause_frames`` are between two words."""
    found: list[Phrase] = []
    for word in word_spans(runs, delimiter):
        if not found:
            found.append(Phrase([word], WordSpan(word.start, word.stop)))
            continue
        words, text = found[-1]
        if runs[word.start].start - runs[text.stop - 1].stop < max_pause_frames:
            found[-1] = Phrase([*words, word], WordSpan(text.start, word.stop))
        else:
            found.append(Phrase([word], WordSpan(text.stop, word.stop)))
    return found
