"""Models without their large tensors, for a GPU that is rented by the minute.

Exporting a model of a billion parameters takes minutes of a CPU. A skeleton has the graphs, the
small tensors, and a sample of each large one; on the other machine, values of that sample in a
pseudo-random order take the place of the weights. They compute nothing, but as fast: for speed, not
for correctness. The order is always the same, so that a skeleton knows the hashes of its bundle.
"""

import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from loadtest.gpu.ctranslate2_tensors import MODEL_FILE, tensors_of

_FILE = "skeleton.json"
_VALUES = "skeleton.bin"
_MANIFEST = "bundle.json"
# Bytes: tensors up to the first stay whole; of larger ones, a sample is kept.
_WHOLE = 1 << 16
_SAMPLE = 1 << 11
# Bytes: a tensor is filled from places of a pool of repeated values, in parts.
_POOL, _PART = 1 << 20, 1 << 18
_PARTS_AT_ONCE = 64  # of one call of the system
_THREADS = 16


class _Piece(NamedTuple):
    """A part of a file, and where its values or a sample of them are in the skeleton, in bytes."""

    offset: int
    length: int
    kept_offset: int
    kept_length: int
    item_bytes: int


def pack(model: Path, skeleton: Path) -> None:
    """Writes the skeleton of a bundle, or of a model of CTranslate2, to a new folder."""
    partial = skeleton.with_name(f"{skeleton.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    large: dict[str, dict[int, tuple[int, int]]] = {}
    for file, offset, length, item_bytes in _tensors(model):
        tensors = large.setdefault(file, {})
        if length > _WHOLE:
            tensors[offset] = (length, item_bytes)  # graphs share weights
    described: dict[str, Any] = {}
    values = bytearray()
    for name, tensors in large.items():
        pieces = _pieces(model / name, tensors, values)
        described[name] = {"size": (model / name).stat().st_size, "pieces": pieces}
    for path in model.iterdir():
        if path.name not in large:
            shutil.copyfile(path, partial / path.name)
    (partial / _FILE).write_text(json.dumps(described), encoding="utf-8")
    (partial / _VALUES).write_bytes(values)
    _correct_hashes(partial, described)
    partial.rename(skeleton)


def pack_settings(model: Path, skeleton: Path) -> None:
    """Copies a folder for ``transformers`` without its weights, which are made on the device."""
    shutil.copytree(model, skeleton, ignore=shutil.ignore_patterns("*.safetensors"))


def unpack(skeleton: Path, model: Path) -> None:
    """Writes a model with pseudo-random weights to a new folder, atomically."""
    partial = model.with_name(f"{model.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in skeleton.iterdir():
        if path.name not in (_FILE, _VALUES):
            shutil.copyfile(path, partial / path.name)
    values = (skeleton / _VALUES).read_bytes()
    for name, about in json.loads((skeleton / _FILE).read_text(encoding="utf-8")).items():
        _fill(partial / name, about, values)
    partial.rename(model)


def _tensors(model: Path) -> Iterator[tuple[str, int, int, int]]:
    """File, offset, length and size of an element of each tensor outside graphs, in bytes."""
    if (model / MODEL_FILE).exists():
        for offset, length, item_bytes in tensors_of(model / MODEL_FILE):
            yield MODEL_FILE, offset, length, item_bytes
    for path in sorted(model.glob("*.onnx")):
        for tensor in onnx.load(str(path), load_external_data=False).graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            where = {entry.key: entry.value for entry in tensor.external_data}
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            offset, length = int(where.get("offset", 0)), int(where["length"])
            yield where["location"], offset, length, dtype.itemsize


def _pieces(path: Path, large: dict[int, tuple[int, int]], values: bytearray) -> list[_Piece]:
    """The pieces of a file in order; adds what is kept of them to ``values``."""
    pieces = []
    with path.open("rb") as file:

        def keep(offset: int, length: int, start: int, count: int, item_bytes: int) -> None:
            if length:
                file.seek(start)
                pieces.append(_Piece(offset, length, len(values), count, item_bytes))
                values.extend(file.read(count))

        end = 0
        for offset, (length, item_bytes) in sorted(large.items()):
            keep(end, offset - end, end, offset - end, 1)
            middle = offset + length // 2 // item_bytes * item_bytes
            keep(offset, length, middle, min(_SAMPLE, length // 2), item_bytes)
            end = offset + length
        keep(end, path.stat().st_size - end, end, path.stat().st_size - end, 1)
    return pieces


def _fill(path: Path, about: dict[str, Any], values: bytes) -> None:
    pieces = [_Piece(*piece) for piece in about["pieces"]]
    with path.open("wb") as file, ThreadPoolExecutor(_THREADS) as pool:
        file.truncate(about["size"])
        for _ in pool.map(lambda piece: _write(file.fileno(), piece, values), pieces):
            pass


def _write(descriptor: int, piece: _Piece, values: bytes) -> None:
    kept = values[piece.kept_offset : piece.kept_offset + piece.kept_length]
    if len(kept) == piece.length:
        os.pwrite(descriptor, kept, piece.offset)
        return
    sample = np.frombuffer(kept, f"V{piece.item_bytes}")
    pool = memoryview(sample[_order(_POOL // piece.item_bytes) % len(sample)].tobytes())
    starts = _order(-(-piece.length // _PART)) % ((_POOL - _PART) // piece.item_bytes)
    parts = [pool[start : start + _PART] for start in (starts * piece.item_bytes).tolist()]
    parts[-1] = parts[-1][: piece.length - _PART * (len(parts) - 1)]
    for first in range(0, len(parts), _PARTS_AT_ONCE):
        some = parts[first : first + _PARTS_AT_ONCE]
        if os.pwritev(descriptor, some, piece.offset + first * _PART) != sum(map(len, some)):
            raise OSError("the disk is full")


@functools.cache
def _order(count: int) -> Any:
    """``count`` numbers in a pseudo-random order: multiplicative hashing, Knuth 6.4."""
    return np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)


def _correct_hashes(skeleton: Path, described: dict[str, Any]) -> None:
    """The server verifies the files of a bundle against its manifest."""
    path = skeleton / _MANIFEST
    if not path.exists():
        return
    manifest = json.loads(path.read_text(encoding="utf-8"))
    values = (skeleton / _VALUES).read_bytes()
    with tempfile.TemporaryDirectory(dir=skeleton) as folder:
        for record in manifest["files"]:
            if record["path"] in described:
                filled = Path(folder) / record["path"]
                _fill(filled, described[record["path"]], values)
                with filled.open("rb") as file:
                    record["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
                filled.unlink()
    path.write_text(json.dumps(manifest), encoding="utf-8")
