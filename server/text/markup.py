"""Splits HTML into text and tags, to translate the text and keep the markup.

A scanner finds the tags; everything except the text is kept character by character. It takes linear
time and builds no tree, so nesting costs nothing. Parsers that build a tree change the markup:
quotes, the order of attributes and missing end tags.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from server.text.markup_rules import INLINE, RAW_TEXT, VOID, is_untranslated

_NAME = re.compile(r"[A-Za-z][^\s/>]*")
_ATTRIBUTES_END = re.compile(r"""[^>"'=]|=\s*(?:"[^"]*"|'[^']*'|[^\s>"'][^\s>]*)?|["']""")
_SPACES = re.compile(r"[ \t\r\n\f]+")
MAX_TAGS = 50_000  # maximum characters "<" per document
MAX_INLINE_TAGS = 256  # per segment; further tags end the segment


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag, comment or other markup. ``name`` is empty if it is not a tag."""

    source: str
    name: str = ""
    is_end: bool = False

    @property
    def is_inline(self) -> bool:
        return self.name in INLINE


@dataclass(slots=True)
class Element:
    """An inline element that covers the characters ``start`` to ``stop`` of a segment's text.

    A void element has no ``end``. ``children`` are the elements inside it.
    """

    begin: Tag
    start: int
    stop: int
    end: Tag | None = None
    children: list["Element"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MarkupSegment:
    """Text between block tags.

    Runs of white space become one space, as browsers show them, except inside <pre>.

    Attributes:
        text: the text without white space around it.
        source: the segment as written.
        elements: its outermost inline elements.
        before: white space before the text.
        after: white space after it.
    """

    text: str
    source: str
    elements: tuple[Element, ...]
    before: str
    after: str

    @property
    def is_text(self) -> bool:
        """Whether the text has letters, so that it needs a translation."""
        return any(map(str.isalpha, self.text))


def segments(document: str) -> Iterator[MarkupSegment | str]:
    """Yields the segments of a document, and the markup between them unchanged."""
    builder = _Builder()
    skipped: list[str] = []  # open elements that are not translated
    in_pre = False
    for part in _parts(document):
        if skipped:
            yield part if isinstance(part, str) else part.source
            if isinstance(part, Tag) and part.name == skipped[-1]:
                skipped.append(part.name) if not part.is_end else skipped.pop()
            continue
        if isinstance(part, str):
            builder.add_text(part)
        elif not part.is_end and part.name not in VOID and is_untranslated(part.name, part.source):
            yield from builder.finish(keeps_space=in_pre)
            yield part.source
            if not part.source.endswith("/>"):
                skipped.append(part.name)
        elif part.is_inline and builder.add_tag(part):
            pass
        else:
            yield from builder.finish(keeps_space=in_pre)
            yield part.source
            if part.name == "pre":
                in_pre = not part.is_end
    yield from builder.finish(keeps_space=in_pre)


class _Builder:
    """Collects text and inline tags. Tags without a partner end the segment."""

    def __init__(self) -> None:
        self._parts: list[str | Tag] = []
        self._num_tags = 0

    def add_text(self, source: str) -> None:
        self._parts.append(source)

    def add_tag(self, tag: Tag) -> bool:
        self._num_tags += 1
        if self._num_tags > MAX_INLINE_TAGS:
            return False
        self._parts.append(tag)
        return True

    def finish(self, *, keeps_space: bool) -> Iterator[MarkupSegment | str]:
        parts, self._parts, self._num_tags = self._parts, [], 0
        paired = _paired(parts)
        first = 0
        for index, part in enumerate(parts):
            if isinstance(part, Tag) and part.name not in VOID and index not in paired:
                if index > first:
                    yield _segment(parts[first:index], keeps_space)
                yield part.source
                first = index + 1
        if first < len(parts):
            yield _segment(parts[first:], keeps_space)


def _segment(parts: list[str | Tag], keeps_space: bool) -> MarkupSegment:
    """Makes a segment of texts and paired tags."""
    texts: list[str] = []
    length = 0
    elements: list[Element] = []
    every: list[Element] = []
    stack: list[Element] = []
    for part in parts:
        if isinstance(part, str):
            text = html.unescape(part)
            if not keeps_space:
                text = _SPACES.sub(" ", text)
                if texts and texts[-1].endswith(" "):
                    text = text.removeprefix(" ")
            if text:
                texts.append(text)
            length += len(text)
        elif part.is_end and part.name not in VOID:
            element = stack.pop()
            element.stop, element.end = length, part
        else:
            element = Element(part, length, length)
            every.append(element)
            (stack[-1].children if stack else elements).append(element)
            if part.name not in VOID:
                stack.append(element)
    source = "".join(part if isinstance(part, str) else part.source for part in parts)
    whole = "".join(texts)
    text = whole.strip()
    num_before = len(whole) - len(whole.lstrip())
    for element in every:
        element.start = min(max(element.start - num_before, 0), len(text))
        element.stop = min(max(element.stop - num_before, 0), len(text))
    after = whole[num_before + len(text) :]
    return MarkupSegment(text, source, tuple(elements), whole[:num_before], after)


def _paired(parts: list[str | Tag]) -> set[int]:
    """The indices of tags that belong to pairs and are properly nested.

    An unpaired tag between two tags of a pair unpairs them, as it splits their text.
    """
    partners: dict[int, int] = {}
    stack: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str) or part.name in VOID:
            continue
        if not part.is_end:
            stack.append(index)
            continue
        start = stack[-1] if stack else None
        begin = parts[start] if start is not None else None
        if isinstance(begin, Tag) and start is not None and begin.name == part.name:
            stack.pop()
            partners[start], partners[index] = index, start
        else:  # an end tag without a begin tag, or that of an outer element
            stack.clear()
            partners = {a: b for a, b in partners.items() if max(a, b) < index}
    alone = [
        index
        for index, part in enumerate(parts)
        if isinstance(part, Tag) and part.name not in VOID and index not in partners
    ]
    return {
        a for a, b in partners.items() if not any(min(a, b) < index < max(a, b) for index in alone)
    }


def _parts(document: str) -> Iterator[str | Tag]:
    """Yields text and markup, in order. Their sources, joined, are the document."""
    position, size = 0, len(document)
    raw = ""  # the element whose content is text without markup
    while position < size:
        if raw:
            end = re.compile(rf"</{raw}[\s/>]", re.IGNORECASE).search(document, position)
            stop = size if end is None else end.start()
            if stop > position:
                yield Tag(document[position:stop])
            position, raw = stop, ""
            continue
        at = document.find("<", position)
        if at < 0:
            yield document[position:]
            return
        if at > position:
            yield document[position:at]
        tag = _tag_at(document, at)
        if tag is None:  # a "<" that begins no tag
            yield "<"
            position = at + 1
            continue
        yield tag
        position = at + len(tag.source)
        if tag.name in RAW_TEXT and not tag.is_end:
            raw = tag.name


def _tag_at(document: str, at: int) -> Tag | None:
    """The markup at a "<", or ``None``. Unclosed markup extends to the end of the document."""
    for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<!", ">"), ("<?", ">")):
        if document.startswith(opening, at):
            end = document.find(closing, at + len(opening))
            return Tag(document[at:] if end < 0 else document[at : end + len(closing)])
    is_end = document.startswith("</", at)
    name = _NAME.match(document, at + 1 + is_end)
    if name is None:
        return None
    position = name.end()
    while position < len(document) and document[position] != ">":
        found = _ATTRIBUTES_END.match(document, position)
        assert found is not None, "the pattern matches every character but >"
        position = found.end()
    if position == len(document):
        return Tag(document[at:])
    return Tag(document[at : position + 1], name[0].lower(), is_end)
