"""CTranslate2's files: types, scales, aliases, and what is refused."""

import struct
from pathlib import Path

import pytest
import torch

from export.errors import SourceError
from export.readers.ctranslate2 import TYPES, is_ctranslate2, read_ctranslate2
from tests.export.importers.ctranslate2_files import SETTINGS, write_model

# A float32 "a" of shape [2, 3], and the alias "b" of it, byte by byte.
CONTENT = b"".join(
    [
        *(b"\6\0\0\0", b"\x0c\0WhisperSpec\0", b"\3\0\0\0", b"\1\0\0\0"),
        *(
            b"\2\0a\0",
            b"\2",
            b"\2\0\0\0\3\0\0\0",
            b"\0",
            b"\x18\0\0\0",
            struct.pack("<6f", *range(6)),
        ),
        *(b"\1\0\0\0", b"\2\0b\0", b"\2\0a\0"),
    ]
)
HEAD = struct.pack("<IH12sI", 6, 12, b"WhisperSpec\0", 3)


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(CONTENT)
    model = read_ctranslate2(path)
    assert (model.spec, model.revision) == ("WhisperSpec", 3)
    assert list(model.weights) == ["a", "b"]
    for name in ("a", "b"):
        assert torch.equal(model.weights[name], torch.arange(6.0).reshape(2, 3))
    written = write_model(tmp_path / "b", {"a": torch.arange(6.0).reshape(2, 3)}, {"b": "a"})
    assert written.read_bytes() == CONTENT


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.tensor([[-3, 0, 5], [100, -128, 127]]).to(dtype)
    model = read_ctranslate2(write_model(tmp_path / "model.bin", {"x": values}, {}))
    assert model.weights["x"].dtype == dtype
    assert torch.equal(model.weights["x"], values)


def test_scalars_are_settings(tmp_path: Path) -> None:
    model = read_ctranslate2(write_model(tmp_path / "model.bin", SETTINGS, {}))
    assert len(model.weights) == 0
    assert model.settings.positive("encoder/num_heads") == 4
    assert model.settings["decoder/alignment_layer"] == -1
    assert "encoder/num_heads" not in model.weights
    with pytest.raises(KeyError):
        model.weights["encoder/num_heads"]


def test_integers_are_divided_by_their_scales(tmp_path: Path) -> None:
    integers = torch.arange(-6, 6).reshape(2, 3, 2)
    scales = torch.tensor([2.0, 8.0])
    file = write_model(
        tmp_path / "model.bin",
        {
            "rows/weight": integers.to(torch.int8),
            "rows/weight_scale": scales,
            "all/weight": integers.to(torch.int16),
            "all/weight_scale": torch.tensor(4.0),
            "half/weight": integers.to(torch.int8),
            "half/weight_scale": scales.half(),
        },
        {"alias/weight": "rows/weight"},
    )
    weights = read_ctranslate2(file).weights
    assert sorted(weights) == ["alias/weight", "all/weight", "half/weight", "rows/weight"]
    expected = integers / scales[:, None, None]
    for name in ("rows", "alias", "half"):
        assert torch.equal(weights[f"{name}/weight"], expected)
        assert weights[f"{name}/weight"].dtype == torch.float32
    assert torch.equal(weights["all/weight"], integers / 4)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(3), r"x of shape \[2, 3\] has a scale of shape \[3\]"),
        (torch.ones(2, dtype=torch.int32), "type torch.int32"),
        (torch.tensor([1.0, 0.0]), "not a positive number"),
        (torch.tensor([1.0, float("nan")]), "not a positive number"),
        (torch.tensor([1.0, float("inf")]), "not a positive number"),
    ],
)
def test_wrong_scales_are_refused(tmp_path: Path, scale: torch.Tensor, message: str) -> None:
    variables = {"x": torch.ones(2, 3, dtype=torch.int8), "x_scale": scale}
    weights = read_ctranslate2(write_model(tmp_path / "model.bin", variables, {})).weights
    with pytest.raises(SourceError, match=message):
        weights["x"]


def variable(shape: tuple[int, ...] = (2,), kind: int = 1, num_bytes: int = 2) -> bytes:
    head = struct.pack(f"<H2sB{len(shape)}I", 2, b"x\0", len(shape), *shape)
    return head + struct.pack("<BI", kind, num_bytes) + b"\1" * min(num_bytes, 64)


ONE = HEAD + struct.pack("<I", 1)
NONE = struct.pack("<I", 0)
ALIAS = struct.pack("<H2sH2s", 2, b"y\0", 2, b"x\0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "model.bin"),
        (b"\7" + CONTENT[1:], "binary version 7, not 6"),
        (HEAD + struct.pack("<I", 2**32 - 1), "4294967295 variables cannot fit"),
        (ONE + variable((2**31, 2**31, 2**31, 2)), "has 2 bytes, but its shape"),
        (ONE + variable((2**31,), num_bytes=2**31), "needs 2147483648 bytes, 64 are left"),
        (ONE + variable((2,), kind=0), "has 2 bytes, but its shape .* need 8"),
        (ONE + variable((2,), kind=6), "x has the unknown type 6"),
        (ONE + variable((0,), num_bytes=0), r"x has the shape \[0\]"),
        (ONE + variable((1,) * 5), "x has 5 dimensions"),
        (HEAD + struct.pack("<I", 2) + 2 * variable() + NONE, "two variables have the same name"),
        (ONE + struct.pack("<H2s", 2, b"xy") + bytes(20), "does not end with its only NUL"),
        (ONE + struct.pack("<H1s", 1, b"\0") + bytes(20), "does not end with its only NUL"),
        (ONE + struct.pack("<H3s", 3, b"\0x\0") + bytes(20), "does not end with its only NUL"),
        (ONE + struct.pack("<H2s", 2, b"\xff\0") + bytes(20), "not UTF-8"),
        (ONE + variable() + struct.pack("<I", 2**31), "2147483648 aliases cannot fit"),
        (ONE + variable() + struct.pack("<I", 1) + ALIAS[:4] * 2, "y cannot be an alias of y"),
        (ONE + variable() + struct.pack("<I", 2) + 2 * ALIAS, "y cannot be an alias of x"),
        (ONE + variable() + NONE + b"\0", "1 bytes after the last alias"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=message):
        read_ctranslate2(path)


def test_aliases_take_no_more_than_the_variables(tmp_path: Path) -> None:
    aliases = {f"alias{index}": "x" for index in range(2)}
    path = write_model(tmp_path / "model.bin", {"x": torch.ones(64)}, aliases)
    with pytest.raises(SourceError, match="2 aliases of 512 bytes, more than the 256"):
        read_ctranslate2(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (CONTENT, True),
        (b"\7" + CONTENT[1:], True),
        (b"\1" + bytes(7) + CONTENT[8:], False),  # Marian's
        (b"PK\3\4" + CONTENT, False),
        (b"", False),
    ],
)
def test_files_are_recognised(tmp_path: Path, content: bytes, expected: bool) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    assert is_ctranslate2(path) == expected
