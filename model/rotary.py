"""Rotary frequencies and their scalings for longer contexts."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from model.position_config import (
    LinearScaling,
    ListedScaling,
    Llama3Scaling,
    RotaryConfig,
    YarnScaling,
)


def linear(frequencies: Tensor, scaling: LinearScaling, _config: RotaryConfig) -> Tensor:
    """Position interpolation (Chen et al. 2023)."""
    return frequencies / scaling.factor


def llama3(frequencies: Tensor, scaling: Llama3Scaling, _config: RotaryConfig) -> Tensor:
    """Llama 3 (Llama Team 2024), after their code."""
    rotations = scaling.original_positions * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((rotations - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def yarn(frequencies: Tensor, scaling: YarnScaling, config: RotaryConfig) -> Tensor:
    """YaRN (Peng et al. 2023, equations 17 to 19); the ramp over dimensions is from their code."""
    size = 2 * len(frequencies)

    def dimension(rotations: float) -> float:
        wavelength = scaling.original_positions / (rotations * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(config.base))

    first, last = dimension(scaling.fast), dimension(scaling.slow)
    if scaling.whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    width = last - first or 0.001
    divided = ((torch.arange(len(frequencies), dtype=torch.float32) - first) / width).clamp(0, 1)
    return frequencies * (1 - divided + divided / scaling.factor)


def listed(frequencies: Tensor, scaling: ListedScaling, _config: RotaryConfig) -> Tensor:
    """LongRoPE (Ding et al. 2024)."""
    return frequencies / torch.tensor(scaling.factors, dtype=torch.float32)


SCALINGS: dict[type, Callable[[Tensor, Any, RotaryConfig], Tensor]] = {
    LinearScaling: linear,
    Llama3Scaling: llama3,
    YarnScaling: yarn,
    ListedScaling: listed,
}


def rotary_frequencies(head_size: int, config: RotaryConfig) -> Tensor:
    """``base^(-2i / size)``, scaled: ``[size / 2]`` radians per position."""
    size = config.size or head_size
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    frequencies = 1 / config.base**exponents
    if config.scaling is None:
        return frequencies
    return SCALINGS[type(config.scaling)](frequencies, config.scaling, config)
