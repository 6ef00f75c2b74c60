"""HTML, sentences and their places in a translation, as pure functions."""

from collections.abc import Iterator

from server.text.markup import MarkupSegment, segments
from server.text.sentences import sentence_spans, split_text
from server.text.tag_placement import AlignedSpan, place_tags
from tests.fuzz.draw import Draw

SIZE = 512
TRANSLATION = "um dois, três <quatro> & cinco"
_SEEDS = (
    '<p>the <b id="x>y">3rd</b> of <i>March</i>, 2021<br>next</p>',
    "a<!-- b --><script>c < d</script><pre> e\n f</pre>&amp;&nbsp;g<![CDATA[h]]>",
    "<b><i>a</b></i></u><img src=x><span class='notranslate'>b</span><p translate=no>c",
    "Dr. Smith left. “So? Yes!”\n- one\n2. two\n\n今天很好。你呢？",
)


def run(data: bytes) -> None:
    draw = Draw(data)
    rows = [(draw.byte(), draw.byte(), draw.byte(), draw.byte()) for _ in range(6)]
    (document,) = draw.rest_as_texts(1)
    parts = list(segments(document))
    sources = [part if isinstance(part, str) else part.source for part in parts]
    assert "".join(sources) == document
    spans = [AlignedSpan(a % 32, a % 32 + b % 8, c % 30, c % 30 + d % 6) for a, b, c, d in rows]
    for part in parts:
        if isinstance(part, MarkupSegment):
            placed = place_tags(part.text, TRANSLATION, part.elements, list(spans))
            _check_placed(part, placed)
    _check_sentences(document)


def _check_placed(segment: MarkupSegment, placed: str) -> None:
    """Every tag is there as often as in the source, and the rest is the text."""
    tags, stack = [], list(segment.elements)
    while stack:
        element = stack.pop()
        tags += [element.begin.source] + ([element.end.source] if element.end else [])
        stack += element.children
    for tag in sorted(set(tags), key=len, reverse=True):  # one may be part of another
        assert placed.count(tag) >= tags.count(tag)
        placed = placed.replace(tag, "", tags.count(tag))
    assert placed == "um dois, três &lt;quatro&gt; &amp; cinco"


def _check_sentences(text: str) -> None:
    split = split_text(text, list(sentence_spans(text, "en")))
    sentences = [text[start:end] for start, end in split.spans]
    after = split.separators[1:]
    joined = "".join(part + space for part, space in zip(sentences, after, strict=True))
    assert split.separators[0] + joined == text


def seeds() -> Iterator[bytes]:
    for text in _SEEDS:
        yield bytes(range(0, 240, 10)) + text.encode()
