"""Weights in safetensors files: one file, or shards with an index."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from export.errors import SourceError


class SafetensorsWeights(Mapping[str, torch.Tensor]):
    """Weights by name over one or more files, each read on access.

    Each tensor is its own mapping of the file's pages, which leave memory with the tensor.

    Raises:
        SourceError: a file is missing or damaged, or two files hold one name.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths: dict[str, Path] = {}
        for path in paths:
            if not path.is_file():
                raise SourceError(f"{path.name}: no such file in {path.parent}")
            try:
                with safe_open(str(path), framework="pt") as file:
                    names = list(file.keys())
            except (OSError, SafetensorError) as error:
                raise SourceError(f"{path.name}: {error}") from error
            for name in names:
                if name in self._paths:
                    raise SourceError(f"{path.name}: {name} is in another file too")
                self._paths[name] = path

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(str(self._paths[name]), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
