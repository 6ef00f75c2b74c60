"""How a token learns where it stands: added to its embedding, or known to attention."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import AttentionConfig, PositionConfig, PositionKind, RotaryConfig, StackConfig
from model.kernels import AttentionPositions, RotaryTables


def sinusoids(max_positions: int, size: int) -> Tensor:
    """``[max_positions, size]``: sines of every frequency, then cosines.

    Vaswani et al. 2017, section 3.5, in the layout of their own code (tensor2tensor):
    frequencies fall geometrically from 1 to 1 / 10,000.
    """
    half = size // 2
    step = math.log(10_000.0) / max(half - 1, 1)
    frequencies = torch.exp(-step * torch.arange(half, dtype=torch.float32))
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def rotary_tables(max_positions: int, head_size: int, config: RotaryConfig) -> RotaryTables:
    """Cosines and sines of ``position * base^(-2i / head_size)`` (Su et al. 2021, eq. 15)."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] / config.base**exponents
    return RotaryTables(angles.cos(), angles.sin())


class PositionTable(nn.Module):
    """Adds a row of ``weight [max_positions, size]`` to each token."""

    weight: Tensor

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + functional.embedding(positions, self.weight)


class LearnedPositions(PositionTable):
    def __init__(self, config: PositionConfig, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_positions, size))


class SinusoidalPositions(PositionTable):
    def __init__(self, config: PositionConfig, size: int) -> None:
        super().__init__()
        table = sinusoids(config.max_positions, size)
        self.register_buffer("weight", table, persistent=False)


class NoPositions(nn.Module):
    """For models that learn of positions elsewhere: in their attention, or not at all."""

    def __init__(self, _config: PositionConfig, _size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, _positions: Tensor) -> Tensor:
        return x


POSITIONS: dict[PositionKind, Callable[[PositionConfig, int], nn.Module]] = {
    PositionKind.NONE: NoPositions,
    PositionKind.SINUSOIDAL: SinusoidalPositions,
    PositionKind.LEARNED: LearnedPositions,
}


class PositionTables(nn.Module):
    """What the attentions of a stack know of positions: one table for all that know the same.

    Called, it gives every layer's :class:`AttentionPositions`, in order.
    """

    def __init__(self, max_positions: int, stack: StackConfig) -> None:
        super().__init__()
        self.attentions = [stack.layers[index].attention for index in stack.applied]
        self.rotaries = list(dict.fromkeys(filter(None, map(_rotary_of, self.attentions))))
        for index, rotary in enumerate(self.rotaries):
            tables = rotary_tables(max_positions, rotary.head_size, rotary.config)
            for name, table in tables._asdict().items():
                self.register_buffer(f"rotary_{index}_{name}", table, persistent=False)

    def forward(self) -> list[AttentionPositions]:
        tables = {
            rotary: RotaryTables(
                self.get_buffer(f"rotary_{index}_cos"), self.get_buffer(f"rotary_{index}_sin")
            )
            for index, rotary in enumerate(self.rotaries)
        }
        rotaries = [_rotary_of(attention) for attention in self.attentions]
        return [
            AttentionPositions(rotary=None if rotary is None else tables[rotary])
            for rotary in rotaries
        ]


class _Rotary(NamedTuple):
    """What a rotary table depends on."""

    config: RotaryConfig
    head_size: int


def _rotary_of(attention: AttentionConfig | None) -> _Rotary | None:
    if attention is None or attention.rotary is None:
        return None
    return _Rotary(attention.rotary, attention.head_size)
