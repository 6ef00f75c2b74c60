"""Layers with a bottleneck: MobileBERT (Sun et al. 2020, section 3.1, figure 1c)."""

from torch import Tensor, nn

from model.basics import Linear
from model.bottleneck_config import BottleneckConfig
from model.config import LayerConfig
from model.kernels import ModelKernels, PositionEncodings
from model.layers import FeedForward, Layer
from model.mixers import ENCODER_MIXERS, required
from model.variants import MixerKind


class BottleneckLayer(Layer):
    """Attention and several feed-forwards on narrow vectors, between two linear maps.

    Queries and keys of the paper read a narrow vector too. Between it and them there is no
    activation, so that here one matrix makes queries, keys and values from the layer's input.
    """

    def __init__(
        self,
        hidden_size: int,
        layer: LayerConfig,
        config: BottleneckConfig,
        kernels: ModelKernels,
    ) -> None:
        super().__init__(layer)
        size, number = config.size, config.num_feed_forwards
        self.narrow = Linear(hidden_size, size, bias=True)
        self.mixer = ENCODER_MIXERS[layer.mixer or MixerKind.ATTENTION](hidden_size, layer, kernels)
        self.mixer_norm = self.make_norm(size, layer)
        feed_forward = required(layer.feed_forward)
        self.feed_forwards = nn.ModuleList(FeedForward(size, feed_forward) for _ in range(number))
        self.feed_forward_norms = nn.ModuleList(self.make_norm(size, layer) for _ in range(number))
        self.widen = Linear(size, hidden_size, bias=True)
        self.norm = self.make_norm(hidden_size, layer)

    def forward(self, x: Tensor, lengths: Tensor, positions: PositionEncodings) -> Tensor:
        """Runs on ``x [batch, length, hidden]``, right-padded to ``lengths [batch]``."""
        attended = self.mixer(x, lengths, positions)
        h = self.residual(self.narrow(x), lambda _: attended, self.mixer_norm)
        for feed_forward, norm in zip(self.feed_forwards, self.feed_forward_norms, strict=True):
            h = self.residual(h, feed_forward, norm)
        return self.residual(x, lambda _: self.widen(h), self.norm)
