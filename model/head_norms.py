"""Norms of an attention's queries and keys, one per :class:`model.variants.HeadNormScope`."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import make_norm
from model.config import AttentionConfig, HeadNormScope, NormConfig, NormKind
from model.eager import apply_rotary, split_heads
from model.kernels import RotaryTables


class EachHeadNorm(nn.Module):
    """Normalizes each head with its own weights; ``weight [heads, head_size]``. It has no bias."""

    def __init__(self, num_heads: int, head_size: int, config: NormConfig) -> None:
        super().__init__()
        if config.kind == NormKind.LAYER and config.bias:
            raise ValueError("a layer norm of each head has no bias")
        self.config = config
        self.weight = nn.Parameter(torch.empty(num_heads, head_size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes ``x [batch, length, heads, head_size]``; the same shape."""
        shape, epsilon = x.shape[-1:], self.config.epsilon
        if self.config.kind == NormKind.LAYER:
            return functional.layer_norm(x, shape, eps=epsilon) * self.weight
        return functional.rms_norm(x, shape, eps=epsilon) * self.weight


def make_head_norm(attention: AttentionConfig, config: NormConfig, num_heads: int) -> nn.Module:
    """The norm for the ``num_heads`` heads of queries or keys."""
    if attention.head_norm_scope == HeadNormScope.EACH_HEAD:
        return EachHeadNorm(num_heads, attention.head_size, config)
    is_shared = attention.head_norm_scope == HeadNormScope.HEAD
    return make_norm(attention.head_size * (1 if is_shared else num_heads), config)


def normalize_heads(x: Tensor, norm: nn.Module, config: AttentionConfig) -> Tensor:
    """Normalizes queries or keys ``x [batch, length, heads * head_size]``; the same shape."""
    if config.head_norm_scope == HeadNormScope.ALL_HEADS:
        normed: Tensor = norm(x)
        return normed
    heads: Tensor = norm(x.reshape(*x.shape[:2], -1, config.head_size))
    return heads.flatten(2)


def rotate(x: Tensor, tables: RotaryTables, positions: Tensor) -> Tensor:
    """Rotates queries or keys ``x [batch, length, heads * head_size]``; the same shape."""
    head_size = 2 * tables.cos.shape[1]
    heads = split_heads(x, x.shape[2] // head_size)
    return apply_rotary(heads, tables, positions).transpose(1, 2).flatten(2)
