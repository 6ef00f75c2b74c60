"""Transformer layers: Vaswani et al. 2017, figure 1, and its variants."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.basics import make_norm
from model.config import (
    Branches,
    FeedForwardConfig,
    LayerConfig,
    NormConfig,
    NormOrder,
)
from model.experts import MixtureOfExperts
from model.kernels import KeyValue, ModelKernels, PositionEncodings, Step
from model.mixer_state import MixerOutput, State
from model.mixers import DECODER_MIXERS, ENCODER_MIXERS, CrossAttention
from model.mlp import MLP
from model.residuals import RESIDUALS, SandwichNorm, Sublayer


class FeedForward(MLP):
    """The MLP of a layer: Vaswani et al. 2017, section 3.3."""


def make_feed_forward(
    hidden_size: int, config: FeedForwardConfig | None, kernels: ModelKernels
) -> nn.Module | None:
    """One feed-forward, a mixture of experts, or None if the layer has neither."""
    if config is None:
        return None
    if config.experts is None:
        return FeedForward(hidden_size, config)
    return MixtureOfExperts(hidden_size, config, config.experts, kernels)


def select_tokens(hidden: Tensor, positions: Tensor) -> Tensor:
    """``hidden [batch, length, size]`` at flat ``positions [n]``: ``[n, size]``.

    A flat position is ``row * length + index``.
    """
    return hidden.reshape(-1, hidden.shape[2]).index_select(0, positions)


def full_lengths(x: Tensor) -> Tensor:
    """``[batch]``: the length of ``x [batch, length, size]``, repeated for rows without padding."""
    return torch.full((x.shape[0],), x.shape[1], dtype=torch.int32)


class Layer(nn.Module):
    """The base of all layers: residual connections and the feed-forward.

    Raises:
        ValueError: the branches are parallel, but the layer is not pre-norm.
    """

    feed_forward: nn.Module | None
    feed_forward_norm: nn.Module

    def __init__(self, layer: LayerConfig) -> None:
        super().__init__()
        self.residual = RESIDUALS[layer.norm_order]
        self.is_parallel = layer.branches == Branches.PARALLEL
        if self.is_parallel and layer.norm_order != NormOrder.PRE:
            raise ValueError(f"parallel branches are pre-norm, not {layer.norm_order}-norm")

    @staticmethod
    def make_norm(size: int, layer: LayerConfig, config: NormConfig | None = None) -> nn.Module:
        """The norm of one residual connection; ``config`` overrides that of ``layer``."""
        is_sandwich = layer.norm_order == NormOrder.SANDWICH
        return (SandwichNorm if is_sandwich else make_norm)(size, config or layer.norm)

    def add_feed_forward(self, h: Tensor, x: Tensor) -> Tensor:
        """``h + feed_forward(norm(h))`` for pre-norm; see :data:`RESIDUALS` for the others.

        Args:
            h: the residual stream after attention.
            x: the layer's input, which parallel branches read (Wang and Komatsuzaki 2021).
        """
        if self.feed_forward is None:
            return h
        if self.is_parallel:
            branch: Tensor = self.feed_forward(self.feed_forward_norm(x))
            return h + branch
        return self.residual(h, self.feed_forward, self.feed_forward_norm)


class EncoderLayer(Layer):
    """Figure 1, left: self-attention, then a feed-forward."""

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: ModelKernels) -> None:
        super().__init__(layer)
        self.mixer: nn.Module | None = None
        if layer.mixer is not None:
            self.mixer = ENCODER_MIXERS[layer.mixer](hidden_size, layer, kernels)
            self.mixer_norm = self.make_norm(hidden_size, layer, layer.mixer_norm)
        self.feed_forward = make_feed_forward(hidden_size, layer.feed_forward, kernels)
        if layer.feed_forward is not None:
            self.feed_forward_norm = self.make_norm(hidden_size, layer)

    def forward(self, x: Tensor, lengths: Tensor, positions: PositionEncodings) -> Tensor:
        """Runs on ``x [batch, length, hidden]``, right-padded to ``lengths [batch]``."""
        h, attention = x, self.mixer
        if attention is not None:
            h = self.residual(h, lambda x: attention(x, lengths, positions), self.mixer_norm)
        return self.add_feed_forward(h, x)


def keep_state(block: Callable[[Tensor], MixerOutput], kept: State) -> Sublayer:
    """Wraps ``block`` as a sub-layer that stores its new state in ``kept``."""

    def sublayer(x: Tensor) -> Tensor:
        output, state = block(x)
        kept.update(state)
        return output

    return sublayer


class DecoderLayer(Layer):
    """Figure 1, right: self-attention, cross-attention, then a feed-forward."""

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: ModelKernels) -> None:
        super().__init__(layer)
        self.mixer: nn.Module | None = None
        if layer.mixer is not None:
            self.mixer = DECODER_MIXERS[layer.mixer](hidden_size, layer, kernels)
            self.mixer_norm = self.make_norm(hidden_size, layer, layer.mixer_norm)
        self.cross_attention: CrossAttention | None = None
        if layer.cross_attention is not None:
            self.cross_attention = CrossAttention(hidden_size, layer.cross_attention, kernels)
            self.cross_attention_norm = self.make_norm(hidden_size, layer)
        self.feed_forward = make_feed_forward(hidden_size, layer.feed_forward, kernels)
        if layer.feed_forward is not None:
            self.feed_forward_norm = self.make_norm(hidden_size, layer)

    def forward(
        self,
        x: Tensor,
        step: Step,
        state: State,
        positions: PositionEncodings,
        logit_positions: Tensor | None = None,
    ) -> MixerOutput:
        """``x [batch, length, hidden]`` and this layer's state, before and after the step.

        Args:
            state: that of the mixer; also ``cross_key`` and ``cross_value`` for cross-attention.
            logit_positions: ``[n]``, flat positions. If given, the feed-forward runs on these
                tokens only, and the output is ``[1, n, hidden]``.
        """
        new_state: State = {}
        h, attention, cross_attention = x, self.mixer, self.cross_attention
        if attention is not None:
            past = {name: x for name, x in state.items() if not name.startswith("cross_")}
            mixer = keep_state(lambda x: attention(x, step, past, positions), new_state)
            h = self.residual(h, mixer, self.mixer_norm)
        if cross_attention is not None:
            source = KeyValue(state["cross_key"], state["cross_value"])
            cross = keep_state(lambda x: cross_attention(x, step, source), new_state)
            h = self.residual(h, cross, self.cross_attention_norm)
        if logit_positions is not None:
            h, x = (select_tokens(tokens, logit_positions)[None] for tokens in (h, x))
        return MixerOutput(self.add_feed_forward(h, x), new_state)
