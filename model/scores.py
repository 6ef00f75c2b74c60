"""Attention scores as maps of queries and keys: a kernel then takes their dot products.

So every score runs on the same fused operators, with the same cache, which holds mapped keys.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import AttentionConfig, ScoreKind
from model.eager import split_heads


class DotScore(nn.Module):
    """``q · k`` (Luong et al. 2015); scaled by ``head_size ** -0.5`` in Vaswani et al. 2017."""

    def __init__(self, _config: AttentionConfig) -> None:
        super().__init__()

    def query(self, query: Tensor) -> Tensor:
        """``query [batch, length, heads * head_size]``, mapped; the same shape."""
        return query

    def key(self, key: Tensor) -> Tensor:
        """``key [batch, length, kv_heads * head_size]``, mapped; the same shape."""
        return key


class BilinearScore(DotScore):
    """``q W k`` with a matrix for each head: "general" in Luong et al. 2015, section 3.1."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        size = config.head_size
        self.weight = nn.Parameter(torch.empty(config.num_heads, size, size))

    def query(self, query: Tensor) -> Tensor:
        heads = split_heads(query, self.weight.shape[0])
        mapped: Tensor = (heads @ self.weight).transpose(1, 2).flatten(2)
        return mapped


class CosineScore(DotScore):
    """``cos(q, k)`` (Graves et al. 2014, section 3.3.1); ``scale`` is its sharpness."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.size = config.head_size

    def query(self, query: Tensor) -> Tensor:
        heads = query.reshape(*query.shape[:2], -1, self.size)
        return functional.normalize(heads, dim=-1).flatten(2)

    def key(self, key: Tensor) -> Tensor:
        return self.query(key)


SCORES: dict[ScoreKind, Callable[[AttentionConfig], DotScore]] = {
    ScoreKind.SCALED_DOT: DotScore,
    ScoreKind.DOT: DotScore,
    ScoreKind.BILINEAR: BilinearScore,
    ScoreKind.COSINE: CosineScore,
}
