"""Marian's binary model files, as ``marian-conv`` writes them.

Layout (marian-dev, ``src/common/binary.cpp``), little-endian: u64 version; u64 N; N records
of four u64 (name length with its NUL, type, number of dimensions, bytes of data); the names;
the i32 shapes; u64 padding and as many bytes; the data.
"""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from export.errors import SourceError, UnsupportedError
from export.readers.cursor import Cursor
from export.readers.fields import Fields
from export.readers.yaml_text import read_yaml

VERSION = 1
CONFIG_TENSOR = "special:model.yml"

FLOAT32 = 0x404
INT8 = 0x101
INTGEMM8 = 0x4101  # in the portable layout; a float32 multiplier follows the values

_MAX_DIMENSIONS = 8


@dataclass(frozen=True, kw_only=True)
class MarianFile:
    """``weights`` are fp32, matrices ``[inputs, outputs]``; ``config`` is the training's."""

    config: Fields
    weights: dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Record:
    name_length: int
    type: int
    num_dimensions: int
    num_bytes: int


def is_marian(path: Path) -> bool:
    """Whether ``path`` starts with the version of Marian's binary files."""
    with path.open("rb") as file:
        return file.read(8) == VERSION.to_bytes(8, "little")


def read_marian(path: Path) -> MarianFile:
    """Reads all weights of the model in ``path``.

    Raises:
        SourceError: it is unreadable, truncated or damaged, or has no configuration.
        UnsupportedError: a weight has an unsupported type.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # mmap rejects empty files
        raise SourceError(f"{path}: {error}") from error
    return _read(Cursor(data, path.name))


def _read(cursor: Cursor) -> MarianFile:
    origin = cursor.origin
    version = cursor.unsigned("Q", "version")
    if version != VERSION:
        raise SourceError(f"{origin}: version {version}, not {VERSION}: not Marian's binary format")
    count = cursor.check_count(cursor.unsigned("Q", "number of tensors"), 32, "tensors")
    records = [_Record(*map(int, cursor.numbers("Q", 4, "record"))) for _ in range(count)]
    names = [cursor.text(record.name_length, "name").rstrip("\0") for record in records]
    shapes = [_read_shape(cursor, *pair) for pair in zip(names, records, strict=True)]
    cursor.bytes(cursor.unsigned("Q", "padding"), "padding")
    if len(set(names)) != len(names):
        raise SourceError(f"{origin}: two tensors have the same name")

    config: Fields | None = None
    weights = {}
    for name, record, shape in zip(names, records, shapes, strict=True):
        data = Cursor(cursor.bytes(record.num_bytes, name), f"{origin}: {name}")
        if name == CONFIG_TENSOR:
            config = _parse_config(data, origin)
        elif not name.endswith("_QuantMultA"):  # activation scales are not used here
            weights[name] = _decode(data, name, record.type, shape)
    if config is None:
        raise SourceError(f"{origin}: no {CONFIG_TENSOR}")
    return MarianFile(config=config, weights=weights)


def _read_shape(cursor: Cursor, name: str, record: _Record) -> tuple[int, ...]:
    if record.num_dimensions > _MAX_DIMENSIONS:
        raise SourceError(f"{cursor.origin}: {name} has {record.num_dimensions} dimensions")
    shape = tuple(map(int, cursor.numbers("i", record.num_dimensions, f"shape of {name}")))
    if min(shape, default=1) < 1:
        raise SourceError(f"{cursor.origin}: {name} has the shape {list(shape)}")
    return shape


def _parse_config(data: Cursor, origin: str) -> Fields:
    text = data.text(data.num_bytes_left, "configuration").rstrip("\0")
    values = read_yaml(text, f"{origin}: {CONFIG_TENSOR}")
    if not isinstance(values, dict):
        raise SourceError(f"{origin}: {CONFIG_TENSOR} is not a mapping")
    return Fields(values, origin)


def _decode(data: Cursor, name: str, kind: int, shape: tuple[int, ...]) -> torch.Tensor:
    size = math.prod(shape)
    if kind == FLOAT32:
        values = np.frombuffer(data.bytes(4 * size, "float32 values"), "<f4")
        return torch.from_numpy(values.reshape(shape).copy())
    if kind != INTGEMM8:
        raise UnsupportedError(
            f"{data.origin}: type {kind:#x}; float32 ({FLOAT32:#x}) and 8-bit integers "
            f"({INTGEMM8:#x}) are supported"
        )
    quantized = np.frombuffer(data.bytes(size, "8-bit values"), np.int8)
    multiplier = float(data.numbers("f", 1, "multiplier")[0])
    if not (math.isfinite(multiplier) and multiplier > 0):
        raise SourceError(f"{data.origin}: multiplier {multiplier}")
    values = quantized.astype(np.float32) / np.float32(multiplier)
    # Embeddings are stored as they are, other matrices transposed (binary.cpp, loadItems).
    if len(shape) == 2 and "Wemb" not in name:
        values = values.reshape(shape[::-1]).T
    return torch.from_numpy(np.ascontiguousarray(values.reshape(shape)))
