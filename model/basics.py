"""Linear maps, and tables of norms and activations."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import Activation, NormConfig, NormKind


class Linear(nn.Module):
    """``x W + b`` with ``weight [inputs, outputs]``, as in papers and ONNX's MatMul."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) over the last dimension."""

    def __init__(self, size: int, config: NormConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size)) if config.bias else None
        self.epsilon = config.epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + epsilon) * weight``: Zhang and Sennrich 2019."""

    def __init__(self, size: int, config: NormConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.epsilon = config.epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class Affine(nn.Module):
    """``x * weight + bias``, in the place of a norm: Sun et al. 2020, section 3.3."""

    def __init__(self, size: int, _config: NormConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


NORMS: dict[NormKind, Callable[[int, NormConfig], nn.Module]] = {
    NormKind.NONE: lambda _size, _config: nn.Identity(),
    NormKind.LAYER: LayerNorm,
    NormKind.RMS: RMSNorm,
    NormKind.AFFINE: Affine,
}


def make_norm(size: int, config: NormConfig) -> nn.Module:
    """The norm that ``config`` describes, over ``size`` features."""
    return NORMS[config.kind](size, config)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.RELU: functional.relu,
    Activation.RELU_SQUARED: lambda x: functional.relu(x) ** 2,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    Activation.SILU: functional.silu,
    Activation.TANH: torch.tanh,
}


class Xielu(nn.Module):
    """xIELU (Huang and Schlag 2024): ``a x^2 + c x`` above 0, ``b (e^x - 1 - x) + c x`` below.

    ``weight [3]`` is ``a``, ``b`` and ``c``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))

    def forward(self, x: Tensor) -> Tensor:
        above, below, linear = self.weight.chunk(3)
        negative = x.clamp(max=0.0)
        curved = above * x.clamp(min=0.0) ** 2 + below * (torch.expm1(negative) - negative)
        result: Tensor = curved + linear * x
        return result


# Activations with weights.
LEARNED_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {Activation.XIELU: Xielu}


def make_activation(kind: Activation) -> Callable[[Tensor], Tensor]:
    """The function ``kind``; a module if it has weights."""
    learned = LEARNED_ACTIVATIONS.get(kind)
    return ACTIVATIONS[kind] if learned is None else learned()
