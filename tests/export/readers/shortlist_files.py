"""Writes binary shortlists in Marian's layout."""

import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from export.readers.shortlist import MAGIC, hash_words


def write_shortlist(path: Path, lists: Sequence[Sequence[int]], num_frequent: int) -> Path:
    """``lists``: the candidates of each source word."""
    offsets = [0, *accumulate(len(row) for row in lists)]
    body = struct.pack("<4Q", num_frequent, 50, len(offsets), offsets[-1])
    body += np.array(offsets, "<u8").tobytes()
    body += np.array([id_ for row in lists for id_ in row], "<u4").tobytes()
    path.write_bytes(struct.pack("<2Q", MAGIC, hash_words(body)) + body)
    return path
