"""Marian's binary shortlists."""

import struct
from pathlib import Path

import pytest

from export.errors import SourceError
from export.readers.shortlist import hash_words, is_marian_shortlist, read_marian_shortlist
from tests.export.readers.shortlist_files import write_shortlist

LISTS = [[4, 7], [], [5], [], [], [3, 5, 6], [], []]
NUM_WORDS = len(LISTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_shortlist(tmp_path / "lex.bin", LISTS, num_frequent=2)


def test_source_words_are_candidates_too(path: Path) -> None:
    shortlist = read_marian_shortlist(path, NUM_WORDS + 1)
    assert is_marian_shortlist(path)
    assert shortlist.frequent.tolist() == [0, 1]
    for word, candidates in enumerate(LISTS):
        assert shortlist.candidates([word]).tolist() == sorted({0, 1, word, *candidates})


def test_every_truncated_file_is_rejected(path: Path) -> None:
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(SourceError):
            read_marian_shortlist(path, NUM_WORDS)


def test_every_changed_byte_is_detected(path: Path) -> None:
    content = path.read_bytes()
    for index in range(len(content)):
        path.write_bytes(content[:index] + bytes([content[index] ^ 0x41]) + content[index + 1 :])
        with pytest.raises(SourceError):
            read_marian_shortlist(path, NUM_WORDS)


@pytest.mark.parametrize("vocabulary_size", [NUM_WORDS - 1, NUM_WORDS + 2])
def test_the_shortlist_of_another_vocabulary_is_rejected(path: Path, vocabulary_size: int) -> None:
    with pytest.raises(SourceError, match="8 words"):
        read_marian_shortlist(path, vocabulary_size)


def test_words_outside_the_vocabulary_are_rejected(tmp_path: Path) -> None:
    path = write_shortlist(tmp_path / "lex.bin", [[0], [2]], num_frequent=1)
    with pytest.raises(SourceError, match="candidate is not in the vocabulary"):
        read_marian_shortlist(path, 2)


def test_checksum_ignores_half_a_word() -> None:
    data = struct.pack("<QQ", 3, 2**64 - 5)
    assert hash_words(data) == hash_words(data + b"tail") != hash_words(data[:8])


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        read_marian_shortlist(tmp_path / "none.bin", NUM_WORDS)
