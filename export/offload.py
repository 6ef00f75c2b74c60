"""Offloads the weights of large models to disk.

An export needs all weights several times, but never two copies at once: to trace the graphs, to run
them, and to run the eager module. Between these steps they need not be in memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

# From this size on, an export saves memory and shortens its checks.
LARGE_BYTES = 1 << 30


def num_bytes(weights: Mapping[str, Tensor]) -> int:
    """The total size of all weights."""
    return sum(weight.numel() * weight.element_size() for weight in weights.values())


class OffloadedWeights(Mapping[str, Tensor]):
    """Weights in a folder, one file each, in fp32; the caller deletes the folder.

    Each access maps the file anew (copy on write), so its pages are freed with the tensor.
    """

    def __init__(self, weights: dict[str, Tensor], directory: Path) -> None:
        """Moves every weight out of ``weights``, which frees its memory at once."""
        directory.mkdir(parents=True)
        self._directory = directory
        self._shapes: dict[str, torch.Size] = {}
        for name in list(weights):
            weight = weights.pop(name).to(torch.float32).contiguous()
            weight.numpy().tofile(directory / name)
            self._shapes[name] = weight.shape

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        path = str(self._directory / name)
        return torch.from_file(path, shared=False, size=shape.numel()).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)
