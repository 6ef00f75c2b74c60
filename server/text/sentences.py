"""Splits texts into sentences, and long sentences at clauses or white space."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import sentencex

from server.text.languages import base_language

Span = tuple[int, int]  # start and end in characters; end excluded

# Maximum characters of a sentence; longer ones are split. The library's time is quadratic in the
# length of its input, so it gets at most this much at once.
MAX_SENTENCE_CHARACTERS = 2000
# Lines of at least this length that end without closing punctuation count as wrapped text.
_WRAPPED_CHARACTERS = 60
_LINE = re.compile(r"[^\r\n\u2028\u2029]+")
_CLOSED = re.compile(r"[.!?:;…。！？：；؟۔।॥][\"'”’»)\]」』]*\s*$")
# The mark of a list item, a heading or a quotation, which is kept unchanged.
_MARKER = re.compile(r"\s*(?:[-*+•‣▪◦·–—>]+|#{1,6}|\(?\d{1,3}[.)])\s+")
_WHITE_SPACE = re.compile(r"\s+")
_BREAKS = (  # places to split a long sentence, best first
    re.compile(r"[;:—–](?=\s)|[；：]"),
    re.compile(r"[,)\]](?=\s)|[，、،]"),
    _WHITE_SPACE,
)
# Languages written without spaces between words.
_SPACELESS = {"bo", "dz", "ja", "km", "lo", "my", "th", "yue", "zh"}


@dataclass(frozen=True, slots=True)
class SplitText:
    """The sentences of a text and the separators around them.

    The text is ``separators[0] + sentence 0 + separators[1] + … + separators[-1]``, apart from a
    space that :func:`split_text` adds where the target language wants one.
    """

    spans: tuple[Span, ...]
    separators: tuple[str, ...]

    @property
    def is_split(self) -> bool:
        """Whether there are several sentences, or one that is only a part of the text."""
        return len(self.spans) > 1 or any(self.separators)


def split_text(text: str, spans: Sequence[Span], source: str = "", target: str = "") -> SplitText:
    """Combines a text's sentences ``spans`` with the separators between them.

    Args:
        text: the whole text.
        spans: its sentences, in order. Without any, the text is not split.
        source: the text's language.
        target: the language to translate to. If it is written with spaces and ``source`` is not, a
            space is inserted between sentences without a separator.
    """
    if not spans:
        return SplitText(((0, len(text)),), ("", ""))
    between = [text[end:start] for (_, end), (start, _) in pairwise(spans)]
    if base_language(source) in _SPACELESS and target and base_language(target) not in _SPACELESS:
        between = [separator or " " for separator in between]
    return SplitText(tuple(spans), (text[: spans[0][0]], *between, text[spans[-1][1] :]))


def sentence_spans(text: str, language: str = "") -> Iterator[Span]:
    """Yields the sentences of a text, without white space around them.

    A line break ends a sentence unless the text is wrapped there. Bullets, numbers of lists and
    sentences without a letter belong to no span. The time is proportional to the text's length.

    Args:
        text: any text.
        language: its language, for abbreviations and punctuation; unknown ones count as English.
    """
    language = base_language(language) or "en"
    for start, end in _paragraphs(text):
        marker = _MARKER.match(text, start, end)
        position = marker.end() if marker is not None else start
        while position < end:
            window = text[position : min(end, position + MAX_SENTENCE_CHARACTERS)]
            lengths = [len(part) for part in sentencex.segment(language, window)]
            if position + len(window) < end:  # the last sentence may continue after the window
                lengths = lengths[:-1] or [_last_break(window)]
            assert 0 < sum(lengths) <= len(window), "the segmenter returns all of its text"
            for length in lengths:
                yield from _trimmed(text, position, position + length)
                position += length


def split_sentence(
    text: str, span: Span, offsets: Sequence[Span | None], max_tokens: int
) -> Iterator[Span]:
    """Yields parts of a sentence with at most ``max_tokens`` tokens each.

    A part ends at the last semicolon, colon or dash in its second half, else comma or bracket, else
    white space; without any of these, it ends between tokens.

    Args:
        text: the whole text.
        span: the sentence in ``text``.
        offsets: the span of each token in the sentence, ``None`` for special tokens.
        max_tokens: maximum tokens of a part; at least 1.
    """
    start, end = span
    tokens = [token for token in offsets if token is not None]
    first, begin = 0, tokens[0][0] if tokens else end - start
    while len(tokens) - first > max_tokens:
        limit = tokens[first + max_tokens][0]
        cut = begin + _last_break(text[start + begin : start + limit])
        yield from _trimmed(text, start + begin, start + cut)
        # A break may be inside a token. Several tokens may be parts of one character.
        next_tokens = range(first + (cut == begin), len(tokens))
        first = next(index for index in next_tokens if tokens[index][1] > cut)
        begin = max(tokens[first][0], cut)
    yield from _trimmed(text, start + begin, end)


def _paragraphs(text: str) -> Iterator[Span]:
    """Yields lines with text; wrapped lines are joined."""
    start: int | None = None
    end = 0
    for line in _LINE.finditer(text):
        if not line[0].strip():
            continue
        if start is not None and not _is_wrapped(text, start, end, line):
            yield start, end
            start = None
        if start is None:
            start = line.start()
        end = line.end()
    if start is not None:
        yield start, end


def _is_wrapped(text: str, start: int, end: int, line: re.Match[str]) -> bool:
    """Whether ``line`` continues the sentence of the line that ends at ``end``."""
    if text[end : line.start()] not in {"\n", "\r\n", "\r"} or _MARKER.match(line[0]):
        return False
    last = text[max(start, end - MAX_SENTENCE_CHARACTERS) : end]
    last = last[max(last.rfind("\n"), last.rfind("\r")) + 1 :]
    if line[0].lstrip()[0].islower():
        return _CLOSED.search(last[-8:]) is None
    return _WRAPPED_CHARACTERS <= len(last) < MAX_SENTENCE_CHARACTERS and len(last) <= 120


def _last_break(window: str) -> int:
    """The number of characters after which to split a window that has no sentence end."""
    for pattern in _BREAKS:
        ends = [found.end() for found in pattern.finditer(window, len(window) // 2)]
        if ends:
            return ends[-1]
    return len(window)


def _trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    """Yields the span without white space around it; nothing if it has no letter."""
    part = text[start:end]
    if any(character.isalpha() for character in part):
        yield start + len(part) - len(part.lstrip()), start + len(part.rstrip())
