"""A pair of texts inside a language model's template."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from tokenizers import Encoding

from model.bundle import PairTemplate

Offsets = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TemplatedPair:
    """The rendered text, and the character ranges of the pair's two texts in it."""

    text: str
    first: range
    second: range

    @classmethod
    def of(cls, template: PairTemplate, first: str, second: str) -> "TemplatedPair":
        """Renders ``first`` and ``second`` with ``template``."""
        start = len(template.before)
        stop = start + len(first)
        second_start = stop + len(template.between)
        return cls(
            template.render(first, second),
            range(start, stop),
            range(second_start, second_start + len(second)),
        )

    def tokens(self, whole: Encoding) -> tuple[range, range]:
        """The token range of each text. A token that spans a text's boundary belongs to it."""
        offsets = whole.offsets
        first, second = (_tokens(offsets, characters) for characters in (self.first, self.second))
        return first, range(max(first.stop, second.start), max(first.stop, second.stop))


def _tokens(offsets: list[tuple[int, int]], characters: range) -> range:
    start = bisect_right(offsets, characters.start, key=lambda span: span[1])
    stop = bisect_left(offsets, characters.stop, key=lambda span: span[0])
    return range(start, max(start, stop))


def offsets_of(whole: Encoding, tokens: range, characters: range | None) -> Offsets:
    """The start and end of each of ``tokens``, in characters.

    Args:
        characters: the range of the tokens' text in the whole, to which offsets are then relative;
            ``None`` means offsets in the whole.
    """
    offsets = whole.offsets[tokens.start : tokens.stop]
    if characters is None:
        return tuple(offsets)
    base, length = characters.start, len(characters)
    return tuple((max(0, start - base), min(length, max(0, end - base))) for start, end in offsets)
