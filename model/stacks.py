"""Stacks of layers: what their layers share, and the order in which they run."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from model.basics import make_norm
from model.bottleneck import BottleneckLayer
from model.config import LayerConfig, ModelConfig, StackConfig
from model.kernels import ModelKernels, PositionEncodings, Step
from model.layers import DecoderLayer, EncoderLayer
from model.mixer_state import State
from model.mixers import BidirectionalAttention
from model.positions import PositionEncoder
from model.signals import LayerSignal


class Stack(nn.Module):
    """The layers, the position encodings that their attentions share, and a final norm."""

    def __init__(
        self,
        config: ModelConfig,
        stack: StackConfig,
        layers: list[nn.Module],
        *,
        bidirectional: bool,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.order = stack.applied
        max_positions = config.position.max_positions
        self.positions = PositionEncoder(max_positions, stack, bidirectional=bidirectional)
        self.signal = LayerSignal(stack, max_positions, config.hidden_size)
        self.final_norm: nn.Module = nn.Identity()
        if stack.final_norm is not None:
            self.final_norm = make_norm(config.hidden_size, stack.final_norm)

    @property
    def applied(self) -> list[nn.Module]:
        """The layers in the order in which they run; a shared layer occurs several times."""
        return [self.layers[index] for index in self.order]


class Encoder(Stack):
    """Encoder layers in order, then the final norm.

    With ``sums_layers``, ``layer_weights [layers + 1]`` are those of the input and of each layer's
    output, the last one after the final norm.
    """

    def __init__(self, config: ModelConfig, stack: StackConfig, kernels: ModelKernels) -> None:
        layers = [_encoder_layer(config.hidden_size, layer, kernels) for layer in stack.layers]
        attentions = [layer.attention for layer in stack.layers if layer.attention is not None]
        bidirectional = not all(attention.is_causal for attention in attentions)
        super().__init__(config, stack, [*layers], bidirectional=bidirectional)
        for layer in layers:
            if isinstance(layer.mixer, BidirectionalAttention):
                layer.mixer.has_unattended = stack.has_unattended
        self.layer_weights: nn.Parameter | None = None
        if stack.sums_layers:
            self.layer_weights = nn.Parameter(torch.empty(len(self.order) + 1))

    def forward(
        self,
        x: Tensor,
        lengths: Tensor,
        num_global: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """As :meth:`EncoderLayer.forward`; the last two arguments as in ``PositionEncodings``."""
        encodings = self.positions.for_sequence(x.shape[1], num_global, segments)
        if self.layer_weights is not None:
            *outputs, last = [x, *self._outputs(x, lengths, 0, encodings)]
            return _weighted_sum([*outputs, self.final_norm(last)], self.layer_weights)
        normed: Tensor = self.final_norm(self._run(x, lengths, 0, encodings))
        return normed

    def finish(self, x: Tensor, lengths: Tensor, start: int) -> Tensor:
        """Runs the layers from index ``start`` on, and the final norm."""
        normed: Tensor = self.final_norm(self.run(x, lengths, start, len(self.order)))
        return normed

    def run(self, x: Tensor, lengths: Tensor, start: int, stop: int) -> Tensor:
        """Runs the layers from index ``start`` to before ``stop``."""
        return self._run(x, lengths, start, self.positions.for_sequence(x.shape[1])[:stop])

    def _run(
        self, x: Tensor, lengths: Tensor, start: int, encodings: list[PositionEncodings]
    ) -> Tensor:
        """Runs the layers from index ``start`` to the last one with an encoding."""
        for output in self._outputs(x, lengths, start, encodings):
            x = output
        return x

    def _outputs(
        self, x: Tensor, lengths: Tensor, start: int, encodings: list[PositionEncodings]
    ) -> Iterator[Tensor]:
        """The output of each of these layers."""
        token_positions = torch.arange(x.shape[1])[None]  # [1, length]
        layers = list(zip(self.applied, encodings, strict=False))[start:]
        for depth, (layer, encoding) in enumerate(layers, start + 1):
            x, positions = self.signal(x, encoding, token_positions, depth)
            x = layer(x, lengths, positions)
            yield x


def _weighted_sum(outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    """The sum of ``outputs``, each ``[batch, length, hidden]``, with ``weights [outputs]``."""
    total = outputs[0] * weights[0]
    for index in range(1, len(outputs)):
        total = total + outputs[index] * weights[index]
    return total


def _encoder_layer(
    hidden_size: int, layer: LayerConfig, kernels: ModelKernels
) -> EncoderLayer | BottleneckLayer:
    if layer.bottleneck is None:
        return EncoderLayer(hidden_size, layer, kernels)
    return BottleneckLayer(hidden_size, layer, layer.bottleneck, kernels)


class Decoder(Stack):
    """Decoder layers in order, then the final norm."""

    def __init__(self, config: ModelConfig, stack: StackConfig, kernels: ModelKernels) -> None:
        layers = [DecoderLayer(config.hidden_size, layer, kernels) for layer in stack.layers]
        super().__init__(config, stack, [*layers], bidirectional=False)

    def cross_attention_kv(self, encoded: Tensor) -> list[State]:
        """Each layer's keys and values for ``encoded [batch, source_length, encoder size]``."""
        states: list[State] = []
        for layer in self.applied:
            states.append({})
            if isinstance(layer, DecoderLayer) and layer.cross_attention is not None:
                source = layer.cross_attention.project_source(encoded)
                states[-1] = {"cross_key": source.key, "cross_value": source.value}
        if not any(states):
            raise ValueError("this decoder has no cross-attention")
        return states

    def forward(
        self, x: Tensor, step: Step, states: list[State], logit_positions: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """``x [batch, length, hidden]`` and each layer's state, before and after the step.

        ``logit_positions [n]``: flat positions. If given, the output is ``[1, n, hidden]``, and the
        last feed-forward runs on these tokens only.
        """
        new_states: list[State] = []
        token_positions = step.num_cached_tokens[:, None] + torch.arange(x.shape[1])
        encodings = self.positions.for_step(x.shape[1], step)
        layers = zip(self.applied, states, encodings, strict=True)
        for depth, (layer, state, encoding) in enumerate(layers, 1):
            selected = logit_positions if depth == len(self.order) else None
            x, positions = self.signal(x, encoding, token_positions, depth)
            x, new_state = layer(x, step, state, positions, selected)
            new_states.append(new_state)
        return self.final_norm(x), new_states
