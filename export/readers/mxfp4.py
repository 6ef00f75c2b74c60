"""Weights in MXFP4: 4-bit floats in blocks of 32 that share a power of two.

Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.2 and 6.3.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from export.errors import WeightsError

# E2M1: a sign, two bits of exponent and one of mantissa.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)])
BLOCKS, SCALES = "_blocks", "_scales"
BLOCK_BYTES = 16  # two values each, the first in the low bits
_EXPONENT_BIAS = 127


class Mxfp4Weights(Mapping[str, Tensor]):
    """``weights`` with those in MXFP4 under one name, as fp32; each is computed on access.

    ``X_blocks [experts, outputs, blocks, 16]`` and ``X_scales [experts, outputs, blocks]`` become
    ``X [experts, inputs, outputs]``, as in unquantized checkpoints.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        bases = (name.removesuffix(BLOCKS) for name in weights if name.endswith(BLOCKS))
        self._packed = {base for base in bases if base + SCALES in weights}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._packed:
            return self._weights[name]
        blocks, scales = self._weights[name + BLOCKS], self._weights[name + SCALES]
        are_bytes = blocks.dtype == scales.dtype == torch.uint8
        if not are_bytes or scales.ndim != 3 or blocks.shape != (*scales.shape, BLOCK_BYTES):
            raise WeightsError(
                f"{name}: no MXFP4 weights: blocks {blocks.dtype} {list(blocks.shape)}, "
                f"scales {scales.dtype} {list(scales.shape)}"
            )
        result = torch.empty(scales.shape[0], scales.shape[1], scales.shape[2] * 2 * BLOCK_BYTES)
        for expert, *packed in zip(result, blocks, scales, strict=True):
            expert.copy_(dequantize(*packed))
        return result.transpose(1, 2)

    def __contains__(self, name: object) -> bool:
        return name in self._packed or (name in self._weights and not self._is_part(name))

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._weights if not self._is_part(name))
        yield from self._packed

    def __len__(self) -> int:
        return len(self._weights) - len(self._packed)

    def _is_part(self, name: object) -> bool:
        ends = (BLOCKS, SCALES)
        return isinstance(name, str) and any(
            name.endswith(end) and name.removesuffix(end) in self._packed for end in ends
        )


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """fp32 values ``[rows, blocks * 32]`` of bytes ``[rows, blocks, 16]``.

    Args:
        scales: exponents ``[rows, blocks]``, biased by 127.
    """
    values = VALUES[torch.stack([blocks & 15, blocks >> 4], -1).int()]
    exponents = scales.int()[:, :, None, None] - _EXPONENT_BIAS
    return torch.ldexp(values, exponents).flatten(1)
