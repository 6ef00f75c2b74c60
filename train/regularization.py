"""Regularization during training: dropout, and the losses of experts and of ponder time.

The modules of ``model`` are the same as in serving; hooks and kernels add the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.adaptive import Ponder
from model.config import AttentionConfig, ExpertsConfig, FeedForwardConfig
from model.eager import EagerKernels
from model.embeddings import InputEmbedding
from model.experts import MixtureOfExperts
from model.image_stream import AttentionWeights, CoAttention
from model.kernels import ExpertWeights
from model.layers import FeedForward
from model.mixer_state import MixerOutput
from model.mixers import CrossAttention, SelfAttention
from model.recurrent import BetweenLayers
from model.relative_positions import RelativeValues
from model.ssru import SimplerSimpleRecurrentUnit
from model.transformer import Transformer
from train.recipe import TrainingRecipe

SUBLAYERS = (
    SelfAttention,
    CrossAttention,
    CoAttention,
    SimplerSimpleRecurrentUnit,
    FeedForward,
    MixtureOfExperts,
)


class TrainingKernels(EagerKernels):
    """Attention with dropout, and experts with the balancing loss.

    Attributes:
        is_training: whether dropout is on.
        valid: ``[batch, length]`` for the running stack, False for padding.
        balancing_losses: one per layer that ran since the last :meth:`begin`.
    """

    def __init__(self, attention_dropout: float) -> None:
        self.attention_dropout = attention_dropout
        self.is_training = True
        self.valid: Tensor | None = None
        self.balancing_losses: list[Tensor] = []

    def begin(self, lengths: Tensor, length: int) -> None:
        """Call it before a stack runs over rows padded to ``length``."""
        self.valid = torch.arange(length) < lengths[:, None]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        config: AttentionConfig,
        bias: Tensor | None = None,
        relative_values: RelativeValues | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """As in :class:`EagerKernels`, with dropped weights; one fused operation if possible."""
        added = (config.soft_cap, bias, relative_values, sinks)
        if any(part is not None for part in added):
            return super().attend(query, key, value, mask, config, bias, relative_values, sinks)
        context = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.is_training else 0.0,
            scale=config.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return context.transpose(1, 2).flatten(2)

    def drop_weights(self, weights: Tensor) -> Tensor:
        return functional.dropout(weights, self.attention_dropout, self.is_training)

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        weights: ExpertWeights,
        feed_forward: FeedForwardConfig,
        config: ExpertsConfig,
    ) -> Tensor:
        """As in :class:`EagerKernels`; records the layer's balancing loss."""
        if self.is_training and self.valid is not None:
            self.balancing_losses.append(balancing_loss(scores[self.valid], config))
        return super().experts(x, scores, weights, feed_forward, config)


def balancing_loss(scores: Tensor, config: ExpertsConfig) -> Tensor:
    """1 if all experts get equally many tokens, up to ``count`` if one gets all.

    Fedus et al. 2021, equation 4, for the top ``active`` experts: ``count * sum(f_e * P_e)`` with
    the share ``f_e`` of choices and the mean probability ``P_e`` of expert ``e``.

    Args:
        scores: ``[tokens, experts]``, the router's logits.
    """
    probabilities = scores.float().softmax(-1)
    chosen = probabilities.topk(config.active, -1).indices
    counts = torch.zeros_like(probabilities).scatter(-1, chosen, 1.0).mean(0) / config.active
    return config.count * (counts * probabilities.mean(0)).sum()


def ponder_time(ponders: Sequence[Ponder]) -> Tensor:
    """The mean of all valid tokens' updates and remainders (Graves 2016, equation 14).

    Only remainders have a gradient. Zero without adaptive computation time.
    """
    times = []
    for ponder in ponders:
        valid = torch.arange(ponder.updates.shape[1]) < ponder.lengths[:, None]
        times.append((ponder.updates + ponder.remainders)[valid].mean())
    return torch.stack(times).mean() if times else torch.zeros(())


def add_dropout(model: Transformer, recipe: TrainingRecipe) -> None:
    """Adds dropout to every sub-layer's output and to the input embedding (Vaswani et al., 5.4).

    It also drops between recurrent layers, and weights of co-attention. It is active while its
    module is in training mode.
    """
    rates: list[tuple[type[nn.Module], float]]
    rates = [(InputEmbedding, recipe.embedding_dropout)]
    rates += [(kind, recipe.residual_dropout) for kind in SUBLAYERS]
    rates.append((BetweenLayers, recipe.recurrent_dropout))
    rates.append((AttentionWeights, recipe.attention_dropout))  # the others are TrainingKernels'
    for module in model.modules():
        for kind, rate in rates:
            if isinstance(module, kind) and rate:
                module.register_forward_hook(_dropout_hook(rate))


def _dropout_hook(rate: float) -> Callable[[nn.Module, Any, Any], object]:
    def drop(module: nn.Module, _inputs: object, output: Tensor | MixerOutput) -> object:
        if isinstance(output, Tensor):
            return functional.dropout(output, rate, module.training)
        return output._replace(output=functional.dropout(output.output, rate, module.training))

    return drop
