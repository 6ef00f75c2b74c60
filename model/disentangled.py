"""Disentangled attention: DeBERTa (He et al. 2020).

Besides content-to-content scores, attention has content-to-position and position-to-content
scores. Positions are relative: a table has one row for each range of distances. Transformer-XL (Dai
et al. 2019) has the first of the two, and XLNet (Yang et al. 2019) scores of segments besides.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import AttentionConfig
from model.eager import split_heads, split_qkv
from model.position_config import DisentangledConfig, DisentangledTerm, DistanceKind


def clipped(distances: Tensor, _config: DisentangledConfig) -> Tensor:
    """One row for each distance (He et al. 2020, equation 3)."""
    return distances


def logarithmic(distances: Tensor, config: DisentangledConfig) -> Tensor:
    """One row for each distance up to half of the span, then logarithmically growing ranges.

    He et al. 2021 (DeBERTa v2). Computed in fp32 and in this order of operations, as in training.
    """
    middle = config.span // 2
    magnitudes = distances.abs().clamp(min=middle)
    log_span = torch.log(torch.tensor((config.max_distance - 1) / middle))
    ratio = torch.log(magnitudes / middle) / log_span
    far = (torch.ceil(ratio * (middle - 1)) + middle) * distances.sign()
    return torch.where(distances.abs() <= middle, distances, far.long())


DISTANCES: dict[DistanceKind, Callable[[Tensor, DisentangledConfig], Tensor]] = {
    DistanceKind.CLIPPED: clipped,
    DistanceKind.LOGARITHMIC: logarithmic,
}


def skew(x: Tensor) -> Tensor:
    """``[..., n, 2 n]`` to ``[..., n, n]``: ``y[i, j] = x[i, j - i + n - 1]``.

    The skewing procedure of Huang et al. 2018 (Music Transformer), section 3.4.1: reshapes
    instead of a gather.
    """
    length = x.shape[-2]
    flat = x.flatten(-2)[..., length - 1 : 2 * length * length - 1]
    return flat.reshape(*x.shape[:-1], 2 * length - 1)[..., :length]


class DisentangledBias(nn.Module):
    """A bias for one layer's scaled scores, computed from its own queries and keys.

    ``content_to_position`` and ``position_to_content``, each ``[2 * span, heads * head_size]``,
    are keys and queries of distances (query minus key) from ``-span`` to ``span - 1``.
    ``query_bias [heads * head_size]`` is added to queries of positions. Tokens of other segments
    have the score of ``segment_key [heads * head_size]``, plus ``segment_bias [heads]``.
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
        self.query_bias = nn.Parameter(torch.empty(size)) if config.has_query_bias else None
        self.has_segments = config.has_segments
        if config.has_segments:
            self.segment_key = nn.Parameter(torch.empty(size))
            self.segment_bias = nn.Parameter(torch.empty(attention.num_heads))
        distances = torch.arange(-config.max_distance, config.max_distance + 1)
        rows = DISTANCES[config.kind](distances, config).clamp(-config.span, config.span - 1)
        self.register_buffer("rows", rows + config.span, persistent=False)
        self.terms = config.terms

    def forward(self, qkv: Tensor, segments: Tensor | None = None) -> Tensor:
        """``qkv [batch, length, ...]``, packed, to ``[batch, heads, length, length]``.

        ``segments [batch, length]``: needed if ``has_segments``.
        """
        config, length = self.attention, qkv.shape[1]
        content, key, _ = split_qkv(qkv, config)
        query = content if self.query_bias is None else content + self.query_bias
        query, key = split_heads(query, config.num_heads), split_heads(key, config.num_kv_heads)
        if config.num_heads != config.num_kv_heads:
            key = key.repeat_interleave(config.num_heads // config.num_kv_heads, 1)
        ascending = torch.arange(1 - length, length + 1)
        # query - key falls along a query's row of keys, and rises along a key's row of queries.
        terms = {
            DisentangledTerm.CONTENT_TO_POSITION: lambda table: self._scores(
                query, table, -ascending
            ),
            DisentangledTerm.POSITION_TO_CONTENT: lambda table: self._scores(
                key, table, ascending
            ).transpose(2, 3),
        }
        scores = [terms[term](self.get_parameter(term)) for term in self.terms]
        if self.has_segments:
            scores.append(self._segment_scores(content, segments))
        return sum(scores[1:], scores[0]) * self.scale

    def _segment_scores(self, query: Tensor, segments: Tensor | None) -> Tensor:
        """Scores of other segments; those of a token's own would be equal, and are left out."""
        if segments is None:
            raise ValueError("this model needs segment_ids")
        products = split_heads(query * self.segment_key, self.attention.num_heads).sum(-1)
        scores = products + self.segment_bias[:, None]  # [batch, heads, length]
        is_other = (segments[:, :, None] != segments[:, None])[:, None]
        return torch.where(is_other, scores[..., None], 0.0)

    def _scores(self, x: Tensor, table: Tensor, distances: Tensor) -> Tensor:
        """Products of ``x [batch, heads, length, size]`` with the rows of ``distances [n]``."""
        index = distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        rows = functional.embedding(self.rows[index], table)
        return skew(x @ split_heads(rows[None], self.attention.num_heads).transpose(2, 3))
