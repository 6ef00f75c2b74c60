"""Relative positions as vectors added to keys and values (Shaw et al. 2018)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config import LINEAR_SCORES, AttentionConfig
from model.position_config import RelativePositionConfig


class RelativeValues(NamedTuple):
    """Vectors that an attention adds to its values.

    Attributes:
        distances: ``[batch or 1, length, total]``, key minus query. Keys are consecutive.
        weight: ``[heads or 1, 2 k + 1, head_size]``, by distance from ``-k`` to ``k``; larger
            distances are clipped.
    """

    distances: Tensor
    weight: Tensor

    def context(self, weights: Tensor) -> Tensor:
        """The weighted sum of the values' vectors: equation 3 without its first term.

        The weights of each distance are summed first, so no tensor has a vector per pair of tokens
        (section 3.3).

        Args:
            weights: attention weights, ``[batch, heads, length, total]``, zero where a query sees
                no key.

        Returns:
            ``[batch, length, heads * head_size]``
        """
        limit, total = self.weight.shape[1] // 2, weights.shape[3]
        before = weights.masked_fill(self.distances[:, None] > -limit, 0.0).sum(-1, keepdim=True)
        after = weights.masked_fill(self.distances[:, None] < limit, 0.0).sum(-1, keepdim=True)
        # The key at each distance within the limit, if there is one: [rows, 1, length, 2 k - 1].
        keys = (torch.arange(1 - limit, limit) - self.distances[:, :, 0, None])[:, None]
        index = keys.clamp(min=0).minimum(torch.scalar_tensor(total - 1, dtype=torch.int64))
        index = index.expand(*weights.shape[:3], 2 * limit - 1)
        near = weights.gather(3, index).masked_fill((keys < 0) | (keys >= total), 0.0)
        sums = torch.cat([before, near, after], 3)  # [batch, heads, length, 2 k + 1]
        return (sums @ self.weight).transpose(1, 2).flatten(2)


class RelativePositions(nn.Module):
    """One layer's vectors, ``[heads or 1, 2 k + 1, head_size]``, for keys and optionally values.

    Raises:
        ValueError: the attention's scores are not linear in its keys.
    """

    def __init__(self, attention: AttentionConfig, config: RelativePositionConfig) -> None:
        super().__init__()
        if attention.score not in LINEAR_SCORES:
            raise ValueError(f"{attention.score} scores with relative positions of keys")
        if attention.rotary is not None or attention.soft_cap is not None:
            raise ValueError("relative positions of keys with rotary positions or a soft cap")
        self.limit = config.max_distance
        self.scale = attention.head_size**-0.5 if attention.scale is None else attention.scale
        num_tables = attention.num_heads if config.per_head else 1
        shape = (num_tables, 2 * config.max_distance + 1, attention.head_size)
        self.key_weight = nn.Parameter(torch.empty(shape))
        self.value_weight = nn.Parameter(torch.empty(shape)) if config.values else None

    def bias(self, query: Tensor, distances: Tensor) -> Tensor:
        """The second term of equation 4, scaled: ``q_i a_ij / sqrt(d)``.

        Args:
            query: ``[batch, heads, length, head_size]``
            distances: ``[batch or 1, length, total]``, key minus query.

        Returns:
            ``[batch, heads, length, total]``
        """
        by_distance = query @ self.key_weight.transpose(1, 2) * self.scale
        index = distances.clamp(-self.limit, self.limit) + self.limit
        return by_distance.gather(3, index[:, None].expand(*query.shape[:3], index.shape[2]))

    def values(self, distances: Tensor) -> RelativeValues | None:
        """The vectors for the kernel to add to the values; None if only keys have vectors."""
        if self.value_weight is None:
            return None
        return RelativeValues(distances, self.value_weight)
