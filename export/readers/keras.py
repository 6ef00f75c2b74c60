"""Keras 3 archives: a zip with ``config.json`` and the weights as HDF5.

The HDF5 library is written in C and trusts its files more than this project's own readers do.
Features that could reach beyond the archive, links and external storage, are rejected.
"""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import torch
from torch import Tensor

from export.errors import SourceError

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.weights.h5"
SUFFIX = ".keras"
# The most bytes that an archive may unpack to: it is read into memory.
MAX_BYTES = 256 * 2**20
MAX_DEPTH = 16


@dataclass(frozen=True)
class KerasArchive:
    """``layers``: class and settings of each layer, including those inside a wrapper.

    ``weights``: by path in the HDF5 file, such as ``layers/gru/cell/vars/0``.
    """

    layers: list[tuple[str, dict[str, Any]]]
    weights: dict[str, Tensor]


class _Layer(msgspec.Struct):
    class_name: str
    config: dict[str, Any]


class _Layers(msgspec.Struct):
    layers: list[_Layer]


class _Config(msgspec.Struct):
    config: _Layers


def read_keras(path: Path) -> KerasArchive:
    """The layers and weights in the archive ``path``.

    Raises:
        SourceError: it is damaged, too large, or its weights are not plain fp32 arrays.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            config, weights = (_member(archive, name) for name in (CONFIG_FILE, WEIGHTS_FILE))
        layers = msgspec.json.decode(config, type=_Config).config.layers
        return KerasArchive(
            [pair for layer in layers for pair in _with_inner(layer.class_name, layer.config)],
            _read_weights(weights),
        )
    except (KeyError, zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise SourceError(f"{path}: {error}") from error
    except (ValueError, OSError, RuntimeError, TypeError) as error:  # raised by msgspec and h5py
        raise SourceError(f"{path}: {CONFIG_FILE} or {WEIGHTS_FILE}: {error}") from error


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    size = archive.getinfo(name).file_size
    if size > MAX_BYTES:
        raise ValueError(f"{name} has {size} bytes, more than {MAX_BYTES}")
    with archive.open(name) as file:
        return file.read(size + 1)[:size]  # the size in the directory may be wrong


def _with_inner(
    name: str, config: dict[str, Any], depth: int = 0
) -> list[tuple[str, dict[str, Any]]]:
    """A layer, and the layers that it wraps (``Bidirectional``, ``TimeDistributed``)."""
    found = [(name, config)]
    for value in config.values():
        is_layer = isinstance(value, dict) and value.get("module") == "keras.layers"
        if is_layer and isinstance(value.get("config"), dict) and depth < MAX_DEPTH:
            found += _with_inner(str(value.get("class_name")), value["config"], depth + 1)
    return found


def _read_weights(data: bytes) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    with h5py.File(io.BytesIO(data), "r") as file:
        _collect(file, "", weights)
    return weights


def _collect(group: Any, prefix: str, weights: dict[str, Tensor], depth: int = 0) -> None:
    """Adds every array below ``group``; hard links may form a cycle, so depth is limited."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{prefix}: more than {MAX_DEPTH} groups inside each other")
    for name in group:
        path = f"{prefix}{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{path}: a link to elsewhere")
        value = group[name]
        if isinstance(value, h5py.Group):
            _collect(value, f"{path}/", weights, depth + 1)
        elif value.external or value.is_virtual:
            raise ValueError(f"{path}: stored in another file")
        elif value.dtype.kind not in "fiu" or value.nbytes > MAX_BYTES:
            raise ValueError(f"{path}: {value.dtype}, {value.shape}: not an array of numbers")
        else:
            weights[path] = torch.from_numpy(np.asarray(value[()], np.float32))
