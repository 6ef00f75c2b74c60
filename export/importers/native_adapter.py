"""LoRA adapters that ``python -m train`` writes, merged into the model that they change."""

from pathlib import Path

from torch import Tensor

from export.checkpoint import Checkpoint, weights_sha256
from export.errors import SourceError, WeightsError
from export.importers.native import is_native, native_checkpoint, read_native_config
from export.readers.safetensors_weights import SafetensorsWeights
from model.native_checkpoint import (
    ADAPTER_FILE,
    ADAPTER_PART,
    CONFIG_FILE,
    PATH_STARTS,
    ChangedModel,
    NativeConfig,
)
from model.transformer import parameter_shapes

_FACTORS = tuple(f".{ADAPTER_PART}.{name}" for name in "ab")


def is_native_adapter(path: Path) -> bool:
    """Whether the folder ``path`` has what training added to another model's weights."""
    return (path / ADAPTER_FILE).is_file() and is_native(path)


def base_of_native(path: Path) -> str:
    """The source of the model that the adapter in ``path`` changes.

    Raises:
        SourceError: the adapter does not say, or its configuration is damaged.
    """
    source = _changed(path, read_native_config(path)).source
    return str((path / source).resolve()) if source.startswith(PATH_STARTS) else source


def rank_of_native(path: Path) -> int:
    """The largest rank of the adapter in ``path``. Raises ``SourceError`` as above."""
    return _changed(path, read_native_config(path)).rank


def import_native_adapter(path: Path, base: Checkpoint) -> Checkpoint:
    """The model ``base`` with the adapter in the folder ``path``.

    Raises:
        SourceError: a file is missing or damaged, or ``base`` has other weights than the model that
            was trained.
        WeightsError: the weights do not fit the configuration.
    """
    native = read_native_config(path)
    changed = _changed(path, native)
    if weights_sha256(base.weights) != changed.sha256:
        raise SourceError(
            f"{path}: the adapter was trained with other weights than those of {base.name!r}: "
            f"{changed.source}"
        )
    found = SafetensorsWeights([path / ADAPTER_FILE])
    names = parameter_shapes(native.model)  # without a head that training replaced
    weights = {name: weight for name, weight in base.weights.items() if name in names}
    for name in found:
        stem, ending = name[: -len(_FACTORS[0])], name[-len(_FACTORS[0]) :]
        if ending not in _FACTORS:
            weights[name] = found[name].float()
        elif ending == _FACTORS[0] or f"{stem}{_FACTORS[0]}" not in found:
            weights[f"{stem}.weight"] = _merged(base, stem, found)
    return native_checkpoint(path, native, weights)


def _changed(path: Path, native: NativeConfig) -> ChangedModel:
    if native.adapter is None:
        raise SourceError(f"{path}: {CONFIG_FILE}: no adapter, the model that is changed")
    return native.adapter


def _merged(base: Checkpoint, stem: str, found: SafetensorsWeights) -> Tensor:
    """The weight ``stem.weight`` with its change ``a [inputs, rank] b [rank, outputs]``."""
    weight = base.weights.get(f"{stem}.weight")
    if weight is None or any(f"{stem}{ending}" not in found for ending in _FACTORS):
        raise WeightsError(f"{ADAPTER_FILE}: {stem} lacks a factor, or is no part of the model")
    a, b = (found[f"{stem}{ending}"].float() for ending in _FACTORS)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != len(b):
        raise WeightsError(f"{ADAPTER_FILE}: the factors of {stem} do not fit each other")
    if weight.shape != (len(a), b.shape[1]):
        raise WeightsError(f"{ADAPTER_FILE}: the factors of {stem} do not fit its weight")
    return weight + a @ b
