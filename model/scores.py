"""Attention scores as maps of queries and keys, of which a kernel takes dot products.

So every score uses the same fused operators and the same cache, which holds mapped keys. A score
that is not a dot product becomes the bias of an operator whose own scores are zero.
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
        """Maps ``query [batch, length, heads * head_size]``; the same shape."""
        return query

    def key(self, key: Tensor) -> Tensor:
        """Maps ``key [batch, length, kv_heads * head_size]``; the same shape."""
        return key


class BilinearScore(DotScore):
    """``q W k`` with a matrix for each head: "general" in Luong et al. 2015, section 3.1."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        size = config.head_size
        self.weight = nn.Parameter(torch.empty(config.num_heads, size, size))

    def query(self, query: Tensor) -> Tensor:
        return _map_heads(query, self.weight)


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


class AdditiveScore(DotScore):
    """``v^T tanh(W q + U k)`` per head (Bahdanau et al. 2015, appendix A.1.2).

    ``query_weight`` is W, ``key_weight`` U, ``output_weight`` v. Computing the scores takes memory
    for ``head_size`` numbers per pair of query and key.

    Raises:
        ValueError: the attention rotates or caps scores, which requires dot products.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        if config.rotary is not None or config.soft_cap is not None:
            raise ValueError("additive scores have no rotary positions and no soft cap")
        size = config.head_size
        self.scale = 1.0 if config.scale is None else config.scale
        self.query_weight = nn.Parameter(torch.empty(config.num_heads, size, size))
        self.key_weight = nn.Parameter(torch.empty(config.num_kv_heads, size, size))
        self.output_weight = nn.Parameter(torch.empty(config.num_heads, size))

    def query(self, query: Tensor) -> Tensor:
        return _map_heads(query, self.query_weight)

    def key(self, key: Tensor) -> Tensor:
        return _map_heads(key, self.key_weight)

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        """The scores of mapped queries and keys.

        Args:
            query: ``[batch, heads, length, head_size]``
            key: ``[batch, kv_heads, total, head_size]``; each serves consecutive query heads.

        Returns:
            ``[batch, heads, length, total]``
        """
        group = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(group, 1) if group > 1 else key
        inner = torch.tanh(query[:, :, :, None] + key[:, :, None])  # [..., length, total, size]
        vector = self.output_weight[:, None, :, None] * self.scale
        return (inner @ vector).squeeze(-1)


def _map_heads(x: Tensor, weight: Tensor) -> Tensor:
    """``x [batch, length, heads * size]`` times ``weight [heads, size, size]``, head by head."""
    mapped: Tensor = (split_heads(x, weight.shape[0]) @ weight).transpose(1, 2).flatten(2)
    return mapped


SCORES: dict[ScoreKind, Callable[[AttentionConfig], DotScore]] = {
    ScoreKind.SCALED_DOT: DotScore,
    ScoreKind.DOT: DotScore,
    ScoreKind.BILINEAR: BilinearScore,
    ScoreKind.COSINE: CosineScore,
    ScoreKind.ADDITIVE: AdditiveScore,
}
