"""Bundles without their large tensors, for a GPU that is rented by the minute.

Exporting a model of a billion parameters takes minutes of a CPU. A skeleton has the graphs, the
small tensors, and a sample of each large one; on the other machine, random values of that sample
take the place of the weights. They compute nothing, but as fast: for speed, not for correctness.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

_FILE = "skeleton.json"
_VALUES = "skeleton.bin"
_MANIFEST = "bundle.json"
# Bytes: tensors up to the first stay whole; of larger ones, a sample is kept.
_WHOLE = 1 << 16
_SAMPLE = 1 << 13
_PART = 1 << 20  # written at once, from a random place of a pool of four such parts


class _Tensor(NamedTuple):
    """Where a tensor is in a file, and where its values or its sample are in the skeleton."""

    file: str
    offset: int
    length: int
    kept_offset: int
    kept_length: int
    item_bytes: int


def pack(bundle: Path, skeleton: Path) -> None:
    """Writes the skeleton of a bundle to a new folder."""
    skeleton.mkdir(parents=True)
    tensors: dict[tuple[str, int], _Tensor] = {}
    values = bytearray()
    for file, offset, length, item_bytes in _external_tensors(bundle):
        if (file, offset) in tensors:
            continue  # graphs share weights
        kept = length if length <= _WHOLE else _SAMPLE
        start = offset if kept == length else offset + length // 2 // item_bytes * item_bytes
        with (bundle / file).open("rb") as source:
            source.seek(start)
            data = source.read(kept)
        tensors[file, offset] = _Tensor(file, offset, length, len(values), len(data), item_bytes)
        values += data
    files = {name for name, _ in tensors}
    for path in bundle.iterdir():
        if path.name not in files:
            shutil.copyfile(path, skeleton / path.name)
    sizes = {name: (bundle / name).stat().st_size for name in files}
    described = {"tensors": list(tensors.values()), "sizes": sizes}
    (skeleton / _FILE).write_text(json.dumps(described), encoding="utf-8")
    (skeleton / _VALUES).write_bytes(values)


def unpack(skeleton: Path, bundle: Path) -> None:
    """Writes a bundle with random weights to a new folder, atomically."""
    partial = bundle.with_name(f"{bundle.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in skeleton.iterdir():
        if path.name not in (_FILE, _VALUES):
            shutil.copyfile(path, partial / path.name)
    described = json.loads((skeleton / _FILE).read_text(encoding="utf-8"))
    values = (skeleton / _VALUES).read_bytes()
    random = np.random.default_rng(0)
    for name, size in described["sizes"].items():
        with (partial / name).open("wb") as file:
            file.truncate(size)
            for tensor in map(_Tensor._make, described["tensors"]):
                if tensor.file == name:
                    file.seek(tensor.offset)
                    for part in _parts(tensor, values, random):
                        file.write(part)
    _correct_hashes(partial)
    partial.rename(bundle)


def _external_tensors(bundle: Path) -> Iterator[tuple[str, int, int, int]]:
    """File, offset, length and size of an element of each tensor outside the graphs, in bytes."""
    for path in sorted(bundle.glob("*.onnx")):
        for tensor in onnx.load(str(path), load_external_data=False).graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            where = {entry.key: entry.value for entry in tensor.external_data}
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            offset, length = int(where.get("offset", 0)), int(where["length"])
            yield where["location"], offset, length, dtype.itemsize


def _parts(tensor: _Tensor, values: bytes, random: np.random.Generator) -> Iterator[bytes]:
    kept = values[tensor.kept_offset : tensor.kept_offset + tensor.kept_length]
    if len(kept) == tensor.length:
        yield kept
        return
    sample = np.frombuffer(kept, f"V{tensor.item_bytes}")
    pool = sample[random.integers(0, len(sample), 4 * _PART // tensor.item_bytes)]
    left = tensor.length // tensor.item_bytes
    while left:
        count = min(left, _PART // tensor.item_bytes)
        first = random.integers(0, len(pool) - count + 1)
        yield pool[first : first + count].tobytes()
        left -= count


def _correct_hashes(bundle: Path) -> None:
    """The server verifies the files of a bundle against its manifest."""
    manifest = json.loads((bundle / _MANIFEST).read_text(encoding="utf-8"))
    for record in manifest["files"]:
        with (bundle / record["path"]).open("rb") as file:
            record["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    (bundle / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
