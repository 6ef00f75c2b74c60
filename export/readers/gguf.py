"""GGUF files, versions 2 and 3 (ggml, ``docs/gguf.md``). Every count is checked before use."""

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch

from export.errors import SourceError, UnsupportedError
from export.readers.cursor import Cursor
from export.readers.fields import Fields

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# Value types by number: struct codes of scalars, then the two types with a length.
_SCALARS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"},
    **{10: "Q", 11: "q", 12: "d"},
}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 16


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """``shape`` is in numpy's order, the reverse of the file's; ``data`` is quantized."""

    name: str
    shape: tuple[int, ...]
    type: gguf.GGMLQuantizationType
    data: memoryview

    def dequantize(self) -> torch.Tensor:
        """The weight in fp32.

        Raises:
            UnsupportedError: dequantization of this type is not implemented.
        """
        raw = np.frombuffer(self.data, np.uint8)
        shape = gguf.quant_shape_to_byte_shape(self.shape, self.type)
        try:
            values = gguf.dequantize(raw.reshape(shape), self.type)
        except NotImplementedError as error:
            raise UnsupportedError(f"{self.name}: {error}") from error
        return torch.from_numpy(np.array(values, np.float32).reshape(self.shape))


class GgufWeights(Mapping[str, torch.Tensor]):
    """Weights by name, each dequantized on access."""

    def __init__(self, tensors: Mapping[str, GgufTensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name].dequantize()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    path: Path
    metadata: Fields
    weights: GgufWeights


def is_gguf(path: Path) -> bool:
    """Whether ``path`` starts with GGUF's magic number."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> GgufFile:
    """Maps ``path`` into memory and reads its metadata and tensor headers.

    Raises:
        SourceError: it is unreadable, not GGUF, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # mmap rejects empty files
        raise SourceError(f"{path}: {error}") from error
    cursor = Cursor(data, path.name)
    if bytes(cursor.bytes(len(MAGIC), "magic")) != MAGIC:
        raise SourceError(f"{path.name}: not a GGUF file")
    version = cursor.unsigned("I", "version")
    if version not in VERSIONS:
        raise SourceError(f"{path.name}: GGUF version {version}, not one of {VERSIONS}")
    num_tensors = cursor.check_count(cursor.unsigned("Q", "number of tensors"), 24, "tensors")
    num_values = cursor.check_count(cursor.unsigned("Q", "number of values"), 13, "values")
    values = {}
    for _ in range(num_values):
        name = _read_string(cursor, "name of a value")
        values[name] = _read_value(cursor, cursor.unsigned("I", f"type of {name}"), name)
    metadata = Fields(values, path.name)
    headers = [_read_header(cursor) for _ in range(num_tensors)]
    alignment = metadata.positive("general.alignment", 32, maximum=_MAX_ALIGNMENT)
    start = -(-cursor.offset // alignment) * alignment
    tensors = {header.name: header.tensor(data, start, path.name) for header in headers}
    if len(tensors) != len(headers):
        raise SourceError(f"{path.name}: two tensors have the same name")
    return GgufFile(path=path, metadata=metadata, weights=GgufWeights(tensors))


def _read_string(cursor: Cursor, what: str) -> str:
    return cursor.text(cursor.unsigned("Q", what), what)


def _read_value(cursor: Cursor, kind: int, name: str) -> object:
    if kind in _SCALARS:
        return cursor.numbers(_SCALARS[kind], 1, name)[0]
    if kind == _STRING:
        return _read_string(cursor, name)
    if kind != _ARRAY:
        raise SourceError(f"{cursor.origin}: {name} has the unknown type {kind}")
    item = cursor.unsigned("I", name)
    count = cursor.unsigned("Q", name)
    if item == _STRING:
        cursor.check_count(count, 8, f"strings of {name}")
        return [_read_string(cursor, name) for _ in range(count)]
    if item not in _SCALARS:
        raise SourceError(f"{cursor.origin}: {name} is an array of the unknown type {item}")
    return list(cursor.numbers(_SCALARS[item], count, name))


@dataclass(frozen=True)
class _Header:
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int  # from the start of the tensor data

    def tensor(self, data: memoryview, start: int, origin: str) -> GgufTensor:
        try:
            kind = gguf.GGMLQuantizationType(self.type)
            row_bytes = gguf.quant_shape_to_byte_shape(self.shape, kind)[-1]
        except ValueError as error:
            raise SourceError(f"{origin}: {self.name}: {error}") from error
        num_bytes = row_bytes * math.prod(self.shape[:-1])
        begin = start + self.offset
        if begin + num_bytes > len(data):
            raise SourceError(
                f"{origin}: {self.name} ends at byte {begin + num_bytes} of a file of "
                f"{len(data)}; the file is truncated or damaged"
            )
        view = data[begin : begin + num_bytes]
        return GgufTensor(name=self.name, shape=self.shape, type=kind, data=view)


def _read_header(cursor: Cursor) -> _Header:
    name = _read_string(cursor, "name of a tensor")
    num_dimensions = cursor.unsigned("I", name)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise SourceError(f"{cursor.origin}: {name} has {num_dimensions} dimensions")
    shape = tuple(map(int, cursor.numbers("Q", num_dimensions, f"shape of {name}")))[::-1]
    if 0 in shape:
        raise SourceError(f"{cursor.origin}: {name} has the shape {list(shape)}")
    kind = cursor.unsigned("I", f"type of {name}")
    return _Header(name, shape, kind, cursor.unsigned("Q", f"offset of {name}"))
