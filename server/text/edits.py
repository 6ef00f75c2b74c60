"""Edits of words: the characters that they change, and how rounds of edits combine."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from model.bundle import Edit, EditKind

# Words as in the training data of edit taggers: numbers, letters with inner apostrophes, and runs
# of punctuation. Every character except white space belongs to a word.
_WORD = re.compile(
    r"\d+(?:,\d{3})*(?:\.\d+)?"
    r"|[^\W\d]+(?:['’][^\W\d]+)*"
    r"|\.{3}|[.!?]+|--+"
    r"|[^\w\s]"
)
_CLOSING = frozenset(".,;:!?)]}%…'’")  # no space before them


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``start`` to ``end`` of a text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Replaces the characters ``start`` to ``end``; an empty span inserts ``replacement``."""

    start: int
    end: int
    replacement: str
    score: float


def words_of(text: str) -> list[Span]:
    """The words of a text, in order; a punctuation mark is a word of its own."""
    return [Span(*match.span()) for match in _WORD.finditer(text)]


def text_edit(text: str, words: Sequence[Span], index: int, edit: Edit, score: float) -> TextEdit:
    """Converts ``edit`` of the word ``index`` to a change of characters, which may be empty."""
    word = words[index]
    if edit.kind == EditKind.DELETE:
        return _deletion(text, word, score)
    if edit.kind == EditKind.APPEND:
        glue = "" if edit.text[0] in _CLOSING else " "
        return TextEdit(word.end, word.end, glue + edit.text, score)
    if edit.kind == EditKind.MERGE:
        end = words[index + 1].start if index + 1 < len(words) else word.end
        return TextEdit(word.end, end, edit.text if end > word.end else "", score)
    change = _CHANGES.get(edit.kind)
    own = text[word.start : word.end]
    changed = edit.text if edit.kind == EditKind.REPLACE else own if change is None else change(own)
    return TextEdit(word.start, word.end, changed, score)


def _deletion(text: str, word: Span, score: float) -> TextEdit:
    """Removes a word with the white space before it, else with that after it."""
    start, end = word.start, word.end
    before = text[:start].rstrip()
    if before and len(before) < start:
        return TextEdit(len(before), end, "", score)
    return TextEdit(start, len(text) - len(text[end:].lstrip()), "", score)


_CHANGES: dict[EditKind, Callable[[str], str]] = {
    EditKind.CAPITALIZE: str.capitalize,
    EditKind.LOWERCASE: str.lower,
    EditKind.UPPERCASE: str.upper,
    EditKind.PLURAL: lambda word: f"{word}s",
    EditKind.SINGULAR: lambda word: word[:-1],
    EditKind.SPLIT: lambda word: word.replace("-", " "),
}


def effective(text: str, edits: Sequence[TextEdit]) -> list[TextEdit]:
    """Drops edits without effect and resolves overlaps by shortening the later edit.

    ``edits`` must be in the order of their words; the result is in the same order.
    """
    found: list[TextEdit] = []
    done = 0
    for edit in edits:
        start = max(edit.start, done)
        end = max(edit.end, start)
        if text[start:end] != edit.replacement:
            found.append(TextEdit(start, end, edit.replacement, edit.score))
            done = end
    return found


def apply(text: str, edits: Sequence[TextEdit]) -> str:
    """Applies ``edits``, which must be in order and not overlap, to ``text``."""
    parts, done = [], 0
    for edit in edits:
        parts += [text[done : edit.start], edit.replacement]
        done = edit.end
    return "".join([*parts, text[done:]])


class Revision:
    """A text, its version after rounds of edits, and the combined edits."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.text = source
        self.edits: tuple[TextEdit, ...] = ()
        """Edits that turn ``source`` into ``text``, in order; they neither overlap nor touch."""

    def apply(self, edits: Sequence[TextEdit]) -> None:
        """Applies edits of ``text`` that :func:`effective` returned.

        An edit that touches one of an earlier round is merged with it; the lowest score is kept.
        """
        text = apply(self.text, edits)
        self.edits = tuple(self._joined(edits, text))
        self.text = text

    def _joined(self, edits: Sequence[TextEdit], text: str) -> list[TextEdit]:
        """The edits from ``source`` to ``text``, the result of ``edits``."""
        old = _changes(self.edits)
        new = _changes(edits)
        # Spans are positions in self.text, which is after the old and before the new edits.
        spans = sorted(
            [(change.after, change.score) for change in old]
            + [(change.before, change.score) for change in new],
            key=lambda one: (one[0].start, one[0].end),
        )
        groups: list[tuple[int, int, float]] = []
        for span, score in spans:
            if groups and span.start <= groups[-1][1]:
                start, end, lowest = groups[-1]
                groups[-1] = start, max(end, span.end), min(lowest, score)
            else:
                groups.append((span.start, span.end, score))
        joined = []
        for start, end, score in groups:
            first, last = _before(old, start, is_end=False), _before(old, end, is_end=True)
            new_start, new_end = _after(new, start, is_end=False), _after(new, end, is_end=True)
            replacement = text[new_start:new_end]
            if self.source[first:last] != replacement:  # later rounds may undo earlier ones
                joined.append(TextEdit(first, last, replacement, score))
        return joined


@dataclass(frozen=True, slots=True)
class _Change:
    """An edit: its span in the text before it and in the text after it."""

    before: Span
    after: Span
    score: float


def _changes(edits: Sequence[TextEdit]) -> list[_Change]:
    changes, shift = [], 0
    for edit in edits:
        start, size = edit.start + shift, len(edit.replacement)
        before = Span(edit.start, edit.end)
        changes.append(_Change(before, Span(start, start + size), edit.score))
        shift += size - (edit.end - edit.start)
    return changes


def _before(changes: Sequence[_Change], place: int, *, is_end: bool) -> int:
    """Maps ``place`` from the text after ``changes`` to that before them.

    ``place`` must not be inside a change, but may be at its edge.
    """
    shift = 0
    for change in changes:
        if change.after.start > place or (change.after.start == place and not is_end):
            break
        shift = change.before.end - change.after.end
    return place + shift


def _after(changes: Sequence[_Change], place: int, *, is_end: bool) -> int:
    """Maps ``place`` from the text before ``changes`` to that after them.

    ``place`` must not be inside a change, but may be at its edge.
    """
    shift = 0
    for change in changes:
        if change.before.start > place or (change.before.start == place and not is_end):
            break
        shift = change.after.end - change.before.end
    return place + shift
