"""Where tensors are in CTranslate2's ``model.bin``.

``export/readers/ctranslate2.py`` documents its layout.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MODEL_FILE = "model.bin"
_ITEM_BYTES = (4, 1, 2, 4, 2, 2)  # by type: fp32, int8, int16, int32, fp16, bf16
_VERSION = 6


def tensors_of(path: Path) -> Iterator[tuple[int, int, int]]:
    """Offset, length and size of an element of each tensor, in bytes.

    Raises:
        ValueError: the file has another version.
    """
    with path.open("rb") as file:
        if _number(file, "<I") != _VERSION:
            raise ValueError(f"{path}: not of version {_VERSION}")
        _skip_name(file)
        _number(file, "<I")  # the specification's revision
        for _ in range(_number(file, "<I")):
            _skip_name(file)
            file.seek(4 * _number(file, "<B"), 1)
            item_bytes = _ITEM_BYTES[_number(file, "<B")]
            length = _number(file, "<I")
            yield file.tell(), length, item_bytes
            file.seek(length, 1)


def _number(file: BinaryIO, layout: str) -> int:
    (number,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
    return int(number)


def _skip_name(file: BinaryIO) -> None:
    file.seek(_number(file, "<H"), 1)
