"""Damaged and hostile files raise a typed error, without crashes or huge allocations."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from export.errors import ExportError, SourceError
from export.readers.ctranslate2 import read_ctranslate2
from export.readers.gguf import read_gguf
from export.readers.marian import read_marian
from tests.export.importers.ctranslate2_files import SETTINGS, write_model
from tests.export.importers.marian_files import CONFIG, random_tensors, write_binary
from tests.export.importers.test_llama_gguf import llama
from tests.export.importers.test_llama_gguf import write as write_gguf

HUGE = (2**63 - 1, 2**64 - 1, 2**40)


def read_all_of_gguf(path: Path) -> None:
    for weight in read_gguf(path).weights.values():
        assert weight.numel() < 10**6


def read_all_of_marian(path: Path) -> None:
    read_marian(path)


def read_all_of_ctranslate2(path: Path) -> None:
    for weight in read_ctranslate2(path).weights.values():
        assert weight.numel() < 10**6


def make_gguf(path: Path) -> Path:
    return write_gguf(path, llama())


def make_marian(path: Path) -> Path:
    return write_binary(path, random_tensors(CONFIG), CONFIG, quantize=True)


def make_ctranslate2(path: Path) -> Path:
    scales = {f"encoder/layer_{i}/norm/gamma": torch.ones(2) for i in range(60)}
    matrix = {"decoder/embeddings/weight": torch.ones(40, 3)}
    return write_model(path, {**SETTINGS, **scales, **matrix})


# By format: writer, reader, and the size of the header in bytes.
KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], None], int]] = {
    "ctranslate2": (make_ctranslate2, read_all_of_ctranslate2, 3_000),
    "gguf": (make_gguf, read_all_of_gguf, 3_000),
    "marian": (make_marian, read_all_of_marian, 7_000),
}
PARAMETERS = pytest.mark.parametrize(("make", "read", "header_bytes"), KINDS.values(), ids=KINDS)


@PARAMETERS
def test_truncated_file_is_rejected(
    tmp_path: Path, make: Callable[[Path], Path], read: Callable[[Path], None], header_bytes: int
) -> None:
    path = make(tmp_path / "model")
    content = path.read_bytes()
    read(path)
    for size in [*range(0, header_bytes, 97), header_bytes, len(content) // 2, len(content) - 200]:
        path.write_bytes(content[:size])
        with pytest.raises(SourceError):
            read(path)


@PARAMETERS
@pytest.mark.parametrize("value", HUGE)
def test_huge_numbers_in_the_header_are_handled(
    tmp_path: Path,
    make: Callable[[Path], Path],
    read: Callable[[Path], None],
    header_bytes: int,
    value: int,
) -> None:
    path = make(tmp_path / "model")
    content = path.read_bytes()
    num_rejected = 0
    for offset in range(4, header_bytes, 36):
        path.write_bytes(content[:offset] + struct.pack("<Q", value) + content[offset + 8 :])
        try:
            read(path)
        except ExportError:
            num_rejected += 1
    assert num_rejected > header_bytes // 36 // 3


def test_marian_errors_name_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<QQ", 1, 2**60))
    with pytest.raises(SourceError, match=r"model.bin: 1152921504606846976 tensors cannot fit"):
        read_marian(path)
    path.write_bytes(struct.pack("<QQ", 3, 0))
    with pytest.raises(SourceError, match="version 3, not 1"):
        read_marian(path)
    path.write_bytes(struct.pack("<QQQ", 1, 0, 0))
    with pytest.raises(SourceError, match=r"no special:model\.yml"):
        read_marian(path)
    path.write_bytes(b"")
    with pytest.raises(SourceError, match=r"model\.bin"):
        read_marian(path)


def test_gguf_errors_name_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content, message in (
        (b"GGUF" + struct.pack("<IQQ", 3, 2**50, 0), "tensors cannot fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**50), "values cannot fit"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGML" + struct.pack("<IQQ", 3, 0, 0), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQQ4sIIQ", 3, 0, 1, 4, b"list", 9, 8, 2**40), "strings of list"),
        (b"GGUF" + struct.pack("<IQQQ4sIIQ", 3, 0, 1, 4, b"list", 9, 4, 2**40), "list at byte"),
    ):
        path.write_bytes(content)
        with pytest.raises(SourceError) as caught:
            read_gguf(path)
        assert message in str(caught.value)
