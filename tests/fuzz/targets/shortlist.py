"""Shortlists: those of bundles, and Marian's."""

import struct
from collections.abc import Iterator

import numpy as np

from export.errors import ExportError
from export.readers.shortlist import MAGIC, hash_words, is_marian_shortlist, read_marian_shortlist
from model.shortlist import Shortlist
from tests.export.readers.shortlist_files import write_shortlist
from tests.fuzz.files import content_of, rewrite, scratch

SIZE = 512
VOCABULARY_SIZE = 9


def run(data: bytes) -> None:
    """First byte: a bundle's file, Marian's, or Marian's with a correct checksum."""
    if not data:
        return
    content = data[1:]
    if data[0] % 3 == 0:
        try:
            shortlist = Shortlist.from_bytes(content, VOCABULARY_SIZE)
        except ValueError as error:
            str(error).encode()
            return
    else:
        if data[0] % 3 == 1:
            content = struct.pack("<2Q", MAGIC, hash_words(content)) + content
        path = rewrite(scratch("shortlist") / "lex.bin", content)
        is_marian_shortlist(path)
        try:
            shortlist = read_marian_shortlist(path, VOCABULARY_SIZE)
        except ExportError as error:
            str(error).encode()
            return
    found = shortlist.candidates(range(2 * VOCABULARY_SIZE), [0])
    assert found.size
    assert (np.diff(found) > 0).all()
    assert found[-1] < VOCABULARY_SIZE


def seeds() -> Iterator[bytes]:
    lists = [[3, 4], [], [8], *[[]] * (VOCABULARY_SIZE - 3)]
    yield b"\0" + Shortlist.of_lists(lists, [0, 1], VOCABULARY_SIZE).to_bytes()
    marian = content_of("lex.bin", lambda path: write_shortlist(path, lists, 2))
    yield b"\2" + marian
    yield b"\1" + marian[16:]
