"""Weights on the disk, for models that are large beside the memory of a machine.

An export needs all weights several times, but never twice at once: to trace the graphs, to run
them, to run the eager module. Between these nothing of them has to be in memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

# Where an export begins to economise: on memory, and on the length of its checks.
LARGE_BYTES = 1 << 30


def num_bytes(weights: Mapping[str, Tensor]) -> int:
    """Of all weights together."""
    return sum(weight.numel() * weight.element_size() for weight in weights.values())


class SpilledWeights(Mapping[str, Tensor]):
    """Weights in files of a folder, one each; the folder is the caller's to delete.

    A tensor is a private mapping of its file, made anew whenever it is asked for: pages leave
    memory when the tensor goes.
    """

    def __init__(self, weights: dict[str, Tensor], directory: Path) -> None:
        """Takes every weight out of ``weights``, so that its memory is free at once."""
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
