"""Validation of SentencePiece's normalization rules: the library's own are valid."""

import struct

import pytest
from sentencepiece import sentencepiece_model_pb2 as proto

from export.tokenization.charsmap import find_error
from tests.export.importers.marian_files import train_vocabulary


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_built_in_rules_are_valid(tmp_path, rules: str) -> None:
    path = train_vocabulary(tmp_path / "source.spm", normalization_rule_name=rules)
    model = proto.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
    charsmap = model.normalizer_spec.precompiled_charsmap
    assert len(charsmap) > 100_000
    assert find_error(charsmap) == ""
    assert find_error(charsmap[:-1]) == "strings without an end"
    assert find_error(charsmap[:1000]).startswith("a trie of")


def trie(first: int, value: int = 0, strings: bytes = b"a\0b\0") -> bytes:
    units = [first, 1 << 31 | value, *[0] * 254]
    return struct.pack("<257I", 1024, *units) + strings


NODE = 1 << 10 | 1 << 8  # its children start at unit 1, which holds a value


def test_out_of_range_pointers_are_reported() -> None:
    assert find_error(trie(NODE, 2)) == ""
    assert find_error(trie(NODE, 1)) == "a unit that points into a string"
    assert find_error(trie(NODE, 4)) == "a unit that points beyond the strings"
    assert find_error(trie(300 << 10)) == "a unit that points beyond the trie"
    assert find_error(trie(NODE, 0, b"\xff\0")).startswith("strings that are not UTF-8")
    assert find_error(b"") == "a trie of 0 bytes"
