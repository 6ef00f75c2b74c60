"""A lexical shortlist: for each source token, the target tokens that may translate it.

``export`` writes it to a file of the bundle, and ``server`` reads it. As in Marian and fast_align
(Dyer et al. 2013), the decoder computes the logits of a few hundred candidates instead of a whole
vocabulary, which is faster and loses little.

The file, little-endian: :data:`MAGIC`; three u32: the numbers of frequent tokens, of source tokens
and of candidates; the frequent tokens; the offset of each source token's first candidate, and the
end of the last; the candidates. All are u32.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from model.graph_spec import LargeCount, Record

MAGIC = b"TRISL001"
_HEADER = struct.Struct("<8s3I")

Ids = npt.NDArray[np.int32]


class ShortlistOrigin(StrEnum):
    """The origin of a lexical shortlist: the checkpoint, or parallel texts (IBM model 1)."""

    CHECKPOINT = "checkpoint"
    IBM1 = "ibm1"


class ShortlistSpec(Record, frozen=True, kw_only=True):
    """The lexical shortlist of an encoder-decoder: :mod:`model.shortlist`."""

    file: str
    origin: ShortlistOrigin


class ShortlistLoss(Record, frozen=True, kw_only=True):
    """Greedy translations with the shortlist compared with those without it.

    ``chrf`` and ``bleu``: in percent; outputs without a shortlist are the references. BLEU is
    sacrebleu's; None if sacrebleu was not installed.
    """

    num_sentences: LargeCount
    num_identical: LargeCount
    mean_candidates: float
    chrf: float
    bleu: float | None = None


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The candidates of source token ``s`` are ``ids[offsets[s] : offsets[s + 1]]``.

    Attributes:
        vocabulary_size: size of the target vocabulary; all ids are below it.
        frequent: candidates for every source.
        excluded: tokens that are never candidates; they are not in the file.
    """

    vocabulary_size: int
    frequent: Ids
    offsets: npt.NDArray[np.int64]
    ids: Ids
    excluded: tuple[int, ...] = ()

    @property
    def num_sources(self) -> int:
        return len(self.offsets) - 1

    def candidates(self, source: Iterable[int], others: Sequence[int] = ()) -> Ids:
        """The tokens that may appear in a translation of ``source``, ascending.

        ``others``: further tokens that may appear, such as those that end an output.
        """
        frequent, ids, starts = self._allowed
        lists = [ids[starts[s] : starts[s + 1]] for s in set(source) if s < self.num_sources]
        given = np.array([id_ for id_ in others if id_ not in self.excluded], np.int32)
        found = np.concatenate([frequent, given, *lists])
        found.sort()
        is_first = np.ones(len(found), np.bool_)  # drops duplicates
        np.not_equal(found[1:], found[:-1], out=is_first[1:])
        return found[is_first]

    def to_bytes(self) -> bytes:
        """The file's content."""
        sizes = (len(self.frequent), self.num_sources, len(self.ids))
        arrays = (self.frequent, self.offsets, self.ids)
        return _HEADER.pack(MAGIC, *sizes) + b"".join(x.astype("<u4").tobytes() for x in arrays)

    @classmethod
    def of_lists(
        cls, lists: Sequence[Iterable[int]], frequent: Iterable[int], vocabulary_size: int
    ) -> "Shortlist":
        """A shortlist with the given candidates for each source token."""
        rows = [sorted(set(row)) for row in lists]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        ids = np.fromiter((id_ for row in rows for id_ in row), np.int32)
        return cls(vocabulary_size, np.array(sorted(set(frequent)), np.int32), offsets, ids)

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary_size: int) -> "Shortlist":
        """Parses a file.

        Raises:
            ValueError: it is damaged, or has tokens outside the vocabulary.
        """
        if len(data) < _HEADER.size:
            raise ValueError("the header is incomplete")
        magic, num_frequent, num_sources, num_ids = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise ValueError("it is not a shortlist")
        sizes = (num_frequent, num_sources + 1, num_ids)
        if len(data) != _HEADER.size + 4 * sum(sizes):
            raise ValueError(f"{len(data)} bytes do not fit the sizes in the header, {sizes}")
        words = np.frombuffer(data, "<u4", offset=_HEADER.size)
        frequent, offsets, ids = np.split(words, np.cumsum(sizes)[:-1])
        if offsets[0] != 0 or offsets[-1] != num_ids or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("the offsets are not ascending from 0 to the number of candidates")
        if max(frequent.max(initial=0), ids.max(initial=0)) >= vocabulary_size:
            raise ValueError(f"a candidate is not in the vocabulary of {vocabulary_size} tokens")
        return cls(
            vocabulary_size,
            frequent.astype(np.int32),
            offsets.astype(np.int64),
            ids.astype(np.int32),
        )

    @cached_property
    def _allowed(self) -> tuple[Ids, Ids, list[int]]:
        """``frequent``, ``ids`` and ``offsets`` without the excluded tokens."""
        is_allowed = np.isin(self.ids, self.excluded, invert=True)
        starts: list[int] = np.concatenate([[0], np.cumsum(is_allowed)])[self.offsets].tolist()
        frequent = self.frequent[np.isin(self.frequent, self.excluded, invert=True)]
        return frequent, self.ids[is_allowed], starts
