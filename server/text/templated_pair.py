"""A pair of texts inside the template of a language model."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from tokenizers import Encoding

from model.bundle import PairTemplate

Offsets = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TemplatedPair:
    """The whole text, and the characters of the pair's two texts in it."""

    text: str
    first: range
    second: range

    @classmethod
    def of(cls, template: PairTemplate, first: str, second: str) -> "TemplatedPair":
        """``first`` and ``second`` in ``template``."""
        start = len(template.before)
        stop = start + len(first)
        second_start = stop + len(template.between)
        return cls(
            template.render(first, second),
            range(start, stop),
            range(second_start, second_start + len(second)),
        )

    def tokens(self, whole: Encoding) -> tuple[range, range]:
        """The tokens of each text. A token at its boundary belongs to it."""
        offsets = whole.offsets
        first, second = (_tokens(offsets, characters) for characters in (self.first, self.second))
        return first, range(max(first.stop, second.start), max(first.stop, second.stop))


def _tokens(offsets: list[tuple[int, int]], characters: range) -> range:
    start = bisect_right(offsets, characters.start, key=lambda span: span[1])
    stop = bisect_left(offsets, characters.stop, key=lambda span: span[0])
    return range(start, max(start, stop))


def offsets_of(whole: Encoding, tokens: range, characters: range | None) -> Offsets:
    """Start and end of each of ``tokens``, in characters.

    Args:
        characters: the text whose tokens they are, if the whole has others around it: the offsets
            are those in the text.
    """
    offsets = whole.offsets[tokens.start : tokens.stop]
    if characters is None:
        return tuple(offsets)
    base, length = characters.start, len(characters)
    return tuple((max(0, start - base), min(length, max(0, end - base))) for start, end in offsets)
