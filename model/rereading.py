"""Encoders whose decoder reads the text again, as BART and T5 do to classify.

Lewis et al. 2019, section 3.1 and figure 3a: the same text is the input of both stacks, one token
later in the decoder, whose last hidden vector has then read the text twice. There is no cache: one
run reads whole texts.
"""

import torch
from msgspec import structs
from torch import Tensor

from model.config import LayerConfig, MixerKind, ModelConfig, StackConfig
from model.image_stream import CoAttention
from model.kernels import ModelKernels, PositionEncodings
from model.layers import Layer, make_feed_forward
from model.mixers import ENCODER_MIXERS, required
from model.rereading_config import RereadingConfig
from model.stacks import Stack


class RereadingLayer(Layer):
    """A decoder's layer over whole texts: causal self-attention, cross-attention, feed-forward."""

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: ModelKernels) -> None:
        super().__init__(layer)
        cross = required(layer.cross_attention)
        causal = structs.replace(required(layer.attention), is_causal=True)
        self.mixer = ENCODER_MIXERS[layer.mixer or MixerKind.ATTENTION](
            hidden_size, structs.replace(layer, attention=causal), kernels
        )
        self.mixer_norm = self.make_norm(hidden_size, layer, layer.mixer_norm)
        self.cross_attention = CoAttention(hidden_size, hidden_size, cross)
        self.cross_attention_norm = self.make_norm(hidden_size, layer)
        self.feed_forward = make_feed_forward(hidden_size, layer.feed_forward, kernels)
        self.feed_forward_norm = self.make_norm(hidden_size, layer)

    def forward(
        self, x: Tensor, encoded: Tensor, lengths: Tensor, positions: PositionEncodings
    ) -> Tensor:
        """``x`` and ``encoded [batch, length, hidden]``, right-padded to ``lengths [batch]``."""
        h = self.residual(x, lambda x: self.mixer(x, lengths, positions), self.mixer_norm)
        h = self.residual(
            h, lambda x: self.cross_attention(x, encoded, lengths), self.cross_attention_norm
        )
        return self.add_feed_forward(h, x)


class RereadingDecoder(Stack):
    """The decoder's layers in order, then the final norm."""

    def __init__(self, config: ModelConfig, stack: StackConfig, kernels: ModelKernels) -> None:
        layers = [RereadingLayer(config.hidden_size, layer, kernels) for layer in stack.layers]
        super().__init__(config, stack, [*layers], bidirectional=False)

    def forward(self, x: Tensor, encoded: Tensor, lengths: Tensor) -> Tensor:
        """As :meth:`RereadingLayer.forward`."""
        encodings = self.positions.for_sequence(x.shape[1])
        for layer, positions in zip(self.applied, encodings, strict=True):
            x = layer(x, encoded, lengths, positions)
        normed: Tensor = self.final_norm(x)
        return normed


def shifted(token_ids: Tensor, lengths: Tensor, config: RereadingConfig) -> Tensor:
    """The decoder's input for ``token_ids [batch, length]``, right-padded to ``lengths``."""
    if config.first is None:
        first = token_ids.gather(1, (lengths - 1).long()[:, None])
    else:
        first = torch.full_like(token_ids[:, :1], config.first)
    return torch.cat([first, token_ids[:, :-1]], 1)
