"""Attention that scores contents against distances: Shaw et al. 2018; DeBERTa (He et al. 2020).

A row of a table stands for a range of distances. What a query's content makes of a key's row,
and what a key's content makes of a query's, is added to the score of the two contents.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import AttentionConfig, DisentangledConfig, DisentangledTerm, DistanceKind
from model.eager import split_heads, split_qkv


def clipped(distances: Tensor, _config: DisentangledConfig) -> Tensor:
    """Distances themselves (Shaw et al. 2018, section 3.2)."""
    return distances


def logarithmic(distances: Tensor, config: DisentangledConfig) -> Tensor:
    """Distances up to half of the span, then ever longer ranges (He et al. 2021, DeBERTa v2).

    In fp32, and in this order, as the models were trained.
    """
    middle = config.span // 2
    away = distances.abs().clamp(min=middle)
    ratio = torch.log(away / middle) / torch.log(torch.tensor((config.max_distance - 1) / middle))
    far = (torch.ceil(ratio * (middle - 1)) + middle) * distances.sign()
    return torch.where(distances.abs() <= middle, distances, far.long())


DISTANCES: dict[DistanceKind, Callable[[Tensor, DisentangledConfig], Tensor]] = {
    DistanceKind.CLIPPED: clipped,
    DistanceKind.LOGARITHMIC: logarithmic,
}


def skewed(x: Tensor) -> Tensor:
    """``[..., n, 2 n]`` to ``[..., n, n]``: element ``(i, j)`` is that at ``(i, j - i + n - 1)``.

    The trick of Huang et al. 2018 (Music Transformer), section 3.4.1: no index is gathered.
    """
    length = x.shape[-2]
    flat = x.flatten(-2)[..., length - 1 : 2 * length * length - 1]
    return flat.reshape(*x.shape[:-1], 2 * length - 1)[..., :length]


class DisentangledBias(nn.Module):
    """What is added to the scaled scores of one layer, from its own queries and keys.

    ``content_to_position`` and ``position_to_content [2 * span, heads * head_size]`` are the
    keys and the queries of distances (query less key) from ``-span`` to ``span - 1``.
    """

    rows: Tensor

    def __init__(self, attention: AttentionConfig, config: DisentangledConfig) -> None:
        super().__init__()
        self.attention = attention
        self.max_distance = config.max_distance
        self.scale = attention.head_size**-0.5 if attention.scale is None else attention.scale
        size = attention.num_heads * attention.head_size
        for term in config.terms:
            self.register_parameter(term, nn.Parameter(torch.empty(2 * config.span, size)))
        distances = torch.arange(-config.max_distance, config.max_distance + 1)
        rows = DISTANCES[config.kind](distances, config).clamp(-config.span, config.span - 1)
        self.register_buffer("rows", rows + config.span, persistent=False)
        self.terms = config.terms

    def forward(self, qkv: Tensor) -> Tensor:
        """``qkv [batch, length, ...]``, packed, to ``[batch, heads, length, length]``."""
        config, length = self.attention, qkv.shape[1]
        query, key, _ = split_qkv(qkv, config)
        query, key = split_heads(query, config.num_heads), split_heads(key, config.num_kv_heads)
        if config.num_heads != config.num_kv_heads:
            key = key.repeat_interleave(config.num_heads // config.num_kv_heads, 1)
        ascending = torch.arange(1 - length, length + 1)
        # Along a query's row, keys come nearer and pass it: its distances fall. A key's rise.
        parts = {
            DisentangledTerm.CONTENT_TO_POSITION: lambda table: self._against(
                query, table, -ascending
            ),
            DisentangledTerm.POSITION_TO_CONTENT: lambda table: self._against(
                key, table, ascending
            ).transpose(2, 3),
        }
        scores = [parts[term](self.get_parameter(term)) for term in self.terms]
        return sum(scores[1:], scores[0]) * self.scale

    def _against(self, x: Tensor, table: Tensor, distances: Tensor) -> Tensor:
        """``x [batch, heads, length, size]`` with the row of each of ``distances [n]``."""
        index = distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        rows = functional.embedding(self.rows[index], table)
        return skewed(x @ split_heads(rows[None], self.attention.num_heads).transpose(2, 3))
