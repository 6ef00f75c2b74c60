"""Marian's binary lexical shortlists, as ``marian-conv --shortlist`` writes them.

Layout (marian-dev, ``src/data/shortlist.cpp``), little-endian u64: magic; checksum; the number of
frequent words; the most candidates per word; the numbers of offsets and of candidates; the offsets.
Then the candidates, u32.
"""

import itertools
from pathlib import Path

import numpy as np

from export.errors import SourceError
from export.readers.cursor import Cursor
from model.shortlist import Shortlist

MAGIC = 0xF11A48D5013417F5


def is_marian_shortlist(path: Path) -> bool:
    """Whether ``path`` starts as Marian's binary shortlists do."""
    with path.open("rb") as file:
        return file.read(8) == MAGIC.to_bytes(8, "little")


def read_marian_shortlist(path: Path, vocabulary_size: int) -> Shortlist:
    """Reads the shortlist in ``path``.

    Source and target share one vocabulary, so each source word is a candidate too, as in Marian.
    ``vocabulary_size`` is that of the exported model, which may have one more token.

    Raises:
        SourceError: it is unreadable, damaged, or of another vocabulary.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    cursor = Cursor(memoryview(data), path.name)
    magic, checksum = map(int, cursor.numbers("Q", 2, "magic and checksum"))
    if magic != MAGIC:
        raise SourceError(
            f"{path.name}: not a binary shortlist of Marian; convert a text file with marian-conv"
        )
    num_frequent, _, num_offsets, num_ids = map(int, cursor.numbers("Q", 4, "header"))
    cursor.check_count(num_offsets, 8, "offsets")
    offsets = np.frombuffer(cursor.bytes(8 * num_offsets, "offsets"), "<u8")
    cursor.check_count(num_ids, 4, "candidates")
    ids = np.frombuffer(cursor.bytes(4 * num_ids, "candidates"), "<u4")
    if cursor.num_bytes_left:
        raise SourceError(f"{path.name}: {cursor.num_bytes_left} bytes follow the candidates")
    if hash_words(data[16:]) != checksum:
        raise SourceError(f"{path.name}: the checksum is wrong; the file is damaged")
    num_words = num_offsets - 1
    if not vocabulary_size - 1 <= num_words <= vocabulary_size or num_frequent > num_words:
        raise SourceError(
            f"{path.name}: is for {num_words} words, but the model has {vocabulary_size} tokens"
        )
    if int(offsets[-1]) != num_ids or (offsets[1:] < offsets[:-1]).any():
        raise SourceError(f"{path.name}: the offsets are not ascending to the number of candidates")
    if ids.max(initial=0) >= num_words:
        raise SourceError(f"{path.name}: a candidate is not in the vocabulary")
    lists = [
        [word, *ids[begin:end].tolist()]
        for word, (begin, end) in enumerate(itertools.pairwise(offsets.tolist()))
    ]
    return Shortlist.of_lists(lists, range(num_frequent), vocabulary_size)


def hash_words(data: bytes) -> int:
    """Marian's checksum of all whole u64 in ``data``, combined as in boost::hash_combine."""
    mask, seed = (1 << 64) - 1, 0
    for word in np.frombuffer(data[: len(data) // 8 * 8], "<u8").tolist():
        seed ^= (word + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & mask
    return seed
