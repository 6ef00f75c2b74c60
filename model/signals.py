"""Position signals that a stack adds in every layer, not only to its input."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from model.config import MixerKind, StackConfig
from model.kernels import AttentionSignal, PositionEncodings
from model.position_config import SignalKind
from model.positions import sinusoids


class SinusoidalSignal(nn.Module):
    """The Universal Transformer's timing signal (Dehghani et al. 2018, equation 4).

    Sinusoids of the token's position plus those of the layer's depth.
    """

    positions: Tensor
    depths: Tensor

    def __init__(self, max_positions: int, num_applied: int, size: int) -> None:
        super().__init__()
        self.register_buffer("positions", sinusoids(max_positions, size), persistent=False)
        self.register_buffer("depths", sinusoids(num_applied + 1, size), persistent=False)

    def forward(self, positions: Tensor, depth: int) -> Tensor | None:
        """``positions [batch, length]`` to ``[batch, length, size]``; ``depth`` from 1."""
        return functional.embedding(positions, self.positions) + self.depths[depth]


class PositionSignal(SinusoidalSignal):
    """Sinusoids of the token's position, the same in every layer."""

    def forward(self, positions: Tensor, depth: int) -> Tensor | None:
        del depth
        return functional.embedding(positions, self.positions)


class NoSignal(nn.Module):
    """No signal: the usual Transformer."""

    def __init__(self, _max_positions: int, _num_applied: int, _size: int) -> None:
        super().__init__()

    def forward(self, _positions: Tensor, _depth: int) -> Tensor | None:
        return None


SIGNALS: dict[SignalKind, Callable[[int, int, int], nn.Module]] = {
    SignalKind.NONE: NoSignal,
    SignalKind.SINUSOIDAL: SinusoidalSignal,
    SignalKind.POSITIONS: PositionSignal,
}


class LayerInput(NamedTuple):
    """The inputs of a layer: ``x [batch, length, hidden]`` and its attention's encodings."""

    x: Tensor
    encodings: PositionEncodings


class LayerSignal(nn.Module):
    """Adds a stack's signal to each layer's input, or passes it to the layer's attention.

    Raises:
        ValueError: a targeted projection does not exist, or a mixer has no projections.
    """

    def __init__(self, stack: StackConfig, max_positions: int, size: int) -> None:
        super().__init__()
        self.vectors = SIGNALS[stack.signal](max_positions, len(stack.applied), size)
        self.targets = stack.signal_targets
        has_others = any(layer.mixer not in (None, MixerKind.ATTENTION) for layer in stack.layers)
        if self.targets and (stack.signal == SignalKind.NONE or has_others):
            raise ValueError("signal_targets need a signal, and attention in every layer")

    def forward(
        self, x: Tensor, encodings: PositionEncodings, positions: Tensor, depth: int
    ) -> LayerInput:
        """The input of the layer that runs as number ``depth``, counted from 1, on ``x``.

        ``positions [batch or 1, length]`` are the tokens' positions.
        """
        vectors = self.vectors(positions, depth)
        if vectors is None:
            return LayerInput(x, encodings)
        if not self.targets:
            return LayerInput(x + vectors, encodings)
        return LayerInput(x, encodings._replace(signal=AttentionSignal(vectors, self.targets)))
