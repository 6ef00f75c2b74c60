"""Position encodings: absolute ones, added to embeddings, and those of attention."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import AttentionConfig, StackConfig
from model.kernels import PositionEncodings, RotaryTables, Step
from model.position_config import (
    PositionConfig,
    PositionKind,
    PositionPlacement,
    RelativeBiasConfig,
    RotaryConfig,
)
from model.relative_bias import RELATIVE_BIASES
from model.rotary import rotary_frequencies


def sinusoids(max_positions: int, size: int) -> Tensor:
    """``[max_positions, size]``: sines of every frequency, then cosines.

    Vaswani et al. 2017, section 3.5, in the layout of their own code (tensor2tensor):
    frequencies fall geometrically from 1 to 1 / 10,000.
    """
    half = size // 2
    step = math.log(10_000.0) / max(half - 1, 1)
    frequencies = torch.exp(-step * torch.arange(half, dtype=torch.float32))
    return _sin_cos(torch.arange(max_positions, dtype=torch.float32), frequencies)


def paper_sinusoids(max_positions: int, size: int) -> Tensor:
    """Like :func:`sinusoids`, with the frequencies of the paper: ``10,000 ** (-2 i / size)``.

    Computed in float64, as ``transformers`` does for Marian and PEGASUS.
    """
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    positions = torch.arange(max_positions, dtype=torch.float64)
    return _sin_cos(positions, 10_000.0**-exponents).float()


def _sin_cos(positions: Tensor, frequencies: Tensor) -> Tensor:
    angles = positions[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def rotary_tables(max_positions: int, head_size: int, config: RotaryConfig) -> RotaryTables:
    """Cosines and sines of ``position * base^(-2i / size)`` (Su et al. 2021, eq. 15), scaled.

    Dimensions beyond ``config.size`` have the angle 0, so they are not rotated.
    """
    frequencies = rotary_frequencies(head_size, config)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
    cos, sin = config.magnitude * angles.cos(), config.magnitude * angles.sin()
    rest = (0, head_size // 2 - len(frequencies))
    return RotaryTables(functional.pad(cos, rest, value=1.0), functional.pad(sin, rest))


def concatenate(x: Tensor, vectors: Tensor) -> Tensor:
    """Appends ``vectors`` to ``x [batch, length, size]``; their first dimensions are broadcast."""
    return torch.cat([x, vectors.expand(*x.shape[:2], -1)], -1)


PLACEMENTS: dict[PositionPlacement, Callable[[Tensor, Tensor], Tensor]] = {
    PositionPlacement.ADDED: torch.add,
    PositionPlacement.CONCATENATED: concatenate,
}


class AbsolutePositions(nn.Module):
    """Adds or appends each token's position vector from ``weight [max_positions, size]``."""

    weight: Tensor

    def __init__(self, config: PositionConfig) -> None:
        super().__init__()
        self.place = PLACEMENTS[config.placement]

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.place(x, functional.embedding(positions, self.weight))


class LearnedPositions(AbsolutePositions):
    def __init__(self, config: PositionConfig, size: int) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.empty(config.max_positions, size))


SINUSOIDS: dict[PositionKind, Callable[[int, int], Tensor]] = {
    PositionKind.SINUSOIDAL: sinusoids,
    PositionKind.SINUSOIDAL_PAPER: paper_sinusoids,
}


class SinusoidalPositions(AbsolutePositions):
    def __init__(self, config: PositionConfig, size: int) -> None:
        super().__init__(config)
        table = SINUSOIDS[config.kind](config.first + config.max_positions, size)
        self.register_buffer("weight", table[config.first :], persistent=False)


class NoPositions(nn.Module):
    """For models without absolute positions; their attention may use relative ones."""

    def __init__(self, _config: PositionConfig, _size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, _positions: Tensor) -> Tensor:
        return x


POSITIONS: dict[PositionKind, Callable[[PositionConfig, int], nn.Module]] = {
    PositionKind.NONE: NoPositions,
    PositionKind.SINUSOIDAL: SinusoidalPositions,
    PositionKind.SINUSOIDAL_PAPER: SinusoidalPositions,
    PositionKind.LEARNED: LearnedPositions,
}


class PositionEncoder(nn.Module):
    """The :class:`PositionEncodings` of every layer of a stack, in order of application.

    Layers with the same configuration share one table.

    Args:
        bidirectional: whether a token sees the tokens after it.
    """

    def __init__(self, max_positions: int, stack: StackConfig, *, bidirectional: bool) -> None:
        super().__init__()
        attentions = [stack.layers[index].attention for index in stack.applied]
        self.layer_rotaries = [_rotary_key(attention) for attention in attentions]
        self.rotaries = list(dict.fromkeys(filter(None, self.layer_rotaries)))
        for index, rotary in enumerate(self.rotaries):
            tables = rotary_tables(max_positions, rotary.head_size, rotary.config)
            for name, table in tables._asdict().items():
                self.register_buffer(f"rotary_{index}_{name}", table, persistent=False)
        self.layer_biases = [_bias_key(attention) for attention in attentions]
        self.bias_configs = list(dict.fromkeys(filter(None, self.layer_biases)))
        self.biases = nn.ModuleList(
            RELATIVE_BIASES[bias.config.kind](bias.config, bias.num_heads, bidirectional)
            for bias in self.bias_configs
        )
        self.layer_relatives = [
            attention is not None and attention.relative is not None for attention in attentions
        ]
        self.has_distances = bool(self.bias_configs) or any(self.layer_relatives)

    def for_sequence(
        self, length: int, num_global: Tensor | None = None, segments: Tensor | None = None
    ) -> list[PositionEncodings]:
        """For whole sequences: queries and keys are the same ``length`` tokens."""
        distances = None
        if self.has_distances:
            positions = torch.arange(length)
            distances = positions - positions[None, :, None]
        encodings = self._for_distances(distances)
        return [
            encoding._replace(num_global=num_global, segments=segments) for encoding in encodings
        ]

    def for_step(self, length: int, step: Step) -> list[PositionEncodings]:
        """For a decoder step: ``length`` new tokens see cached ones and each other."""
        if not self.has_distances:
            return self._for_distances(None)
        queries = step.num_cached_tokens[:, None] + torch.arange(length)
        keys = torch.arange(step.max_total_length.item())
        return self._for_distances(keys - queries[:, :, None])

    def _for_distances(self, distances: Tensor | None) -> list[PositionEncodings]:
        """``distances [rows, length, total]``, key minus query; None if no layer needs them."""
        tables = {
            rotary: RotaryTables(
                self.get_buffer(f"rotary_{index}_cos"), self.get_buffer(f"rotary_{index}_sin")
            )
            for index, rotary in enumerate(self.rotaries)
        }
        biases = {}
        if distances is not None:
            for config, bias in zip(self.bias_configs, self.biases, strict=True):
                biases[config] = bias(distances)
        return [
            PositionEncodings(
                rotary=None if rotary is None else tables[rotary],
                bias=None if bias is None else biases[bias],
                distances=distances if is_relative else None,
            )
            for rotary, bias, is_relative in zip(
                self.layer_rotaries, self.layer_biases, self.layer_relatives, strict=True
            )
        ]


class _RotaryKey(NamedTuple):
    """Layers with equal keys share a rotary table."""

    config: RotaryConfig
    head_size: int


def _rotary_key(attention: AttentionConfig | None) -> _RotaryKey | None:
    if attention is None or attention.rotary is None:
        return None
    return _RotaryKey(attention.rotary, attention.head_size)


class _BiasKey(NamedTuple):
    """Layers with equal keys share a relative bias."""

    config: RelativeBiasConfig
    num_heads: int


def _bias_key(attention: AttentionConfig | None) -> _BiasKey | None:
    if attention is None or attention.bias is None:
        return None
    return _BiasKey(attention.bias, attention.num_heads)
