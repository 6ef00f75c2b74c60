"""How a token learns where it stands: added to its embedding, or known to attention."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import (
    AttentionConfig,
    PositionConfig,
    PositionKind,
    RelativeBiasConfig,
    RotaryConfig,
    SignalKind,
    StackConfig,
)
from model.kernels import AttentionPositions, RotaryTables, Step
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
    return _waves(torch.arange(max_positions, dtype=torch.float32), frequencies)


def paper_sinusoids(max_positions: int, size: int) -> Tensor:
    """As :func:`sinusoids`, with the frequencies of the paper: ``10,000 ** (-2 i / size)``.

    In double precision, as ``transformers`` makes them for its Marian and PEGASUS.
    """
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    places = torch.arange(max_positions, dtype=torch.float64)
    return _waves(places, 10_000.0**-exponents).float()


def _waves(places: Tensor, frequencies: Tensor) -> Tensor:
    angles = places[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def rotary_tables(max_positions: int, head_size: int, config: RotaryConfig) -> RotaryTables:
    """Cosines and sines of ``position * base^(-2i / size)`` (Su et al. 2021, eq. 15), scaled.

    Dimensions beyond ``config.size`` have the angle 0: they stay as they are.
    """
    frequencies = rotary_frequencies(head_size, config)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
    cos, sin = config.magnitude * angles.cos(), config.magnitude * angles.sin()
    rest = (0, head_size // 2 - len(frequencies))
    return RotaryTables(functional.pad(cos, rest, value=1.0), functional.pad(sin, rest))


class PositionTable(nn.Module):
    """Adds a row of ``weight [max_positions, size]`` to each token."""

    weight: Tensor

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + functional.embedding(positions, self.weight)


class LearnedPositions(PositionTable):
    def __init__(self, config: PositionConfig, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_positions, size))


SINUSOIDS: dict[PositionKind, Callable[[int, int], Tensor]] = {
    PositionKind.SINUSOIDAL: sinusoids,
    PositionKind.SINUSOIDAL_PAPER: paper_sinusoids,
}


class SinusoidalPositions(PositionTable):
    def __init__(self, config: PositionConfig, size: int) -> None:
        super().__init__()
        table = SINUSOIDS[config.kind](config.first + config.max_positions, size)
        self.register_buffer("weight", table[config.first :], persistent=False)


class NoPositions(nn.Module):
    """For models that learn of positions elsewhere: in their attention, or not at all."""

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


class SinusoidalSignal(nn.Module):
    """Sinusoids of the place and of how often layers were applied (Dehghani et al. 2018, eq. 4)."""

    places: Tensor
    times: Tensor

    def __init__(self, max_positions: int, num_applied: int, size: int) -> None:
        super().__init__()
        self.register_buffer("places", sinusoids(max_positions, size), persistent=False)
        self.register_buffer("times", sinusoids(num_applied + 1, size), persistent=False)

    def forward(self, x: Tensor, places: Tensor, time: int) -> Tensor:
        """``x [batch, length, size]``, ``places [batch or 1, length]``; ``time`` begins with 1."""
        return x + (functional.embedding(places, self.places) + self.times[time])


class NoSignal(nn.Module):
    """For layers that are applied once, or need not know."""

    def __init__(self, _max_positions: int, _num_applied: int, _size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, _places: Tensor, _time: int) -> Tensor:
        return x


SIGNALS: dict[SignalKind, Callable[[int, int, int], nn.Module]] = {
    SignalKind.NONE: NoSignal,
    SignalKind.SINUSOIDAL: SinusoidalSignal,
}


class PositionTables(nn.Module):
    """What the attentions of a stack know of positions: one table for all that know the same.

    Both methods give every layer's :class:`AttentionPositions`, in order. ``both_ways``: a
    token may see those after it.
    """

    def __init__(self, max_positions: int, stack: StackConfig, *, both_ways: bool) -> None:
        super().__init__()
        attentions = [stack.layers[index].attention for index in stack.applied]
        self.rotary_of = [_rotary_of(attention) for attention in attentions]
        self.rotaries = list(dict.fromkeys(filter(None, self.rotary_of)))
        for index, rotary in enumerate(self.rotaries):
            tables = rotary_tables(max_positions, rotary.head_size, rotary.config)
            for name, table in tables._asdict().items():
                self.register_buffer(f"rotary_{index}_{name}", table, persistent=False)
        self.bias_of = [_bias_of(attention) for attention in attentions]
        self.bias_configs = list(dict.fromkeys(filter(None, self.bias_of)))
        self.biases = nn.ModuleList(
            RELATIVE_BIASES[bias.config.kind](bias.config, bias.num_heads, both_ways)
            for bias in self.bias_configs
        )

    def of_sequence(self, length: int) -> list[AttentionPositions]:
        """Where queries and keys are the ``length`` tokens of a whole sequence."""
        if not self.bias_configs:
            return self._of(None)
        places = torch.arange(length)
        return self._of(places - places[None, :, None])

    def of_step(self, length: int, step: Step) -> list[AttentionPositions]:
        """Where ``length`` new tokens see themselves and those cached."""
        if not self.bias_configs:
            return self._of(None)
        queries = step.num_cached_tokens[:, None] + torch.arange(length)
        return self._of(torch.arange(step.max_total_length.item()) - queries[:, :, None])

    def _of(self, distances: Tensor | None) -> list[AttentionPositions]:
        """``distances [rows, length, total]``, key less query; None where no bias needs them."""
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
            AttentionPositions(
                rotary=None if rotary is None else tables[rotary],
                bias=None if bias is None else biases[bias],
            )
            for rotary, bias in zip(self.rotary_of, self.bias_of, strict=True)
        ]


class _Rotary(NamedTuple):
    """What a rotary table depends on."""

    config: RotaryConfig
    head_size: int


def _rotary_of(attention: AttentionConfig | None) -> _Rotary | None:
    if attention is None or attention.rotary is None:
        return None
    return _Rotary(attention.rotary, attention.head_size)


class _Bias(NamedTuple):
    """What a relative bias depends on."""

    config: RelativeBiasConfig
    num_heads: int


def _bias_of(attention: AttentionConfig | None) -> _Bias | None:
    if attention is None or attention.bias is None:
        return None
    return _Bias(attention.bias, attention.num_heads)
