"""Gated short convolutions, a mixer: LFM2 (Liquid AI 2025)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import LayerConfig
from model.kernels import ModelKernels, PositionEncodings, Step
from model.mixer_state import MixerOutput, State


class _Gated(NamedTuple):
    """The convolution's input and the gate of its output, each ``[batch, length, hidden]``."""

    inputs: Tensor
    gate: Tensor


class ShortConvolution(nn.Module):
    """``W_o (c * conv(b * v))`` for ``[b, c, v] = W_i x``, with a kernel for each channel.

    ``depthwise_weight [size, hidden]``: its last row is for the token itself.
    """

    def __init__(self, hidden_size: int, layer: LayerConfig, _kernels: ModelKernels) -> None:
        super().__init__()
        if layer.convolution is None:
            raise ValueError("this layer lacks the configuration of its convolution")
        self.size, bias = layer.convolution.size, layer.convolution.bias
        self.input = Linear(hidden_size, 3 * hidden_size, bias=bias)
        self.depthwise_weight = nn.Parameter(torch.empty(self.size, hidden_size))
        self.depthwise_bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.output = Linear(hidden_size, hidden_size, bias=bias)

    def project(self, x: Tensor) -> _Gated:
        """``x [batch, length, hidden]`` to the convolution's input and gate."""
        before, after, values = self.input(x).chunk(3, -1)
        return _Gated(before * values, after)

    def convolve(self, inputs: Tensor) -> Tensor:
        """``inputs [batch, size - 1 + length, hidden]`` to ``[batch, length, hidden]``."""
        length = inputs.shape[1] - self.size + 1
        rows = self.depthwise_weight.chunk(self.size)
        first, *others = (inputs[:, k : k + length] * row for k, row in enumerate(rows))
        y = sum(others, first)
        return y if self.depthwise_bias is None else y + self.depthwise_bias

    def no_past(self, inputs: Tensor) -> Tensor:
        """Zeros ``[batch, size - 1, hidden]``, the inputs before the first token."""
        return inputs.new_zeros(inputs.shape[0], self.size - 1, inputs.shape[2])


class CausalConvolution(ShortConvolution):
    """A decoder's convolution.

    State: ``convolution [batch, size - 1, hidden]``, the inputs of the last tokens.
    """

    def forward(
        self, x: Tensor, step: Step, state: State, _positions: PositionEncodings
    ) -> MixerOutput:
        inputs, gate = self.project(x)
        past = state["convolution"] if state else self.no_past(inputs)
        inputs = torch.cat([past, inputs], 1)
        last = step.last_inputs(self.size - 1, inputs.shape[1])
        kept = inputs.flatten(0, 1).index_select(0, last).reshape(past.shape)
        return MixerOutput(self.output(gate * self.convolve(inputs)), {"convolution": kept})


class EncoderConvolution(ShortConvolution):
    """The same in an encoder whose tokens see only those before them."""

    def forward(self, x: Tensor, _lengths: Tensor, _positions: PositionEncodings) -> Tensor:
        inputs, gate = self.project(x)
        padded = torch.cat([self.no_past(inputs), inputs], 1)
        output: Tensor = self.output(gate * self.convolve(padded))
        return output
