"""The small parts: linear maps, norms, activations, positions. One table for each axis."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import Activation, NormConfig, NormKind, PositionConfig, PositionKind
from model.kernels import RotaryTables


class Linear(nn.Module):
    """``x W + b`` with ``weight [inputs, outputs]``, as papers and ONNX's MatMul write it."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class LayerNorm(nn.Module):
    """Ba et al. 2016, over the last dimension."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class RMSNorm(nn.Module):
    """Zhang and Sennrich 2019: ``x / sqrt(mean(x^2) + epsilon) * weight``."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


NORMS: dict[NormKind, Callable[[int, float], nn.Module]] = {
    NormKind.LAYER: LayerNorm,
    NormKind.RMS: RMSNorm,
}


def make_norm(size: int, config: NormConfig) -> nn.Module:
    """The norm of ``config`` over ``size`` features."""
    return NORMS[config.kind](size, config.epsilon)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.RELU: functional.relu,
    Activation.GELU: functional.gelu,
    Activation.SILU: functional.silu,
}


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


def rotary_tables(max_positions: int, head_size: int, base: float) -> RotaryTables:
    """Cosines and sines of ``position * base^(-2i / head_size)`` (Su et al. 2021, eq. 15)."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] / base**exponents
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
    PositionKind.ROTARY: NoPositions,
}
