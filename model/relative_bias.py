"""Biases that attention adds to its scores, by how far a key stands from its query."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import RelativeBiasConfig, RelativeBiasKind


def distance_buckets(config: RelativeBiasConfig, *, both_ways: bool) -> Tensor:
    """The bucket of every distance (key less query) from ``-max_distance`` to ``max_distance``.

    Raffel et al. 2020, section 2.1, as their code (mesh-tensorflow) has it: half of the buckets
    hold one distance each, the others ever longer ranges, as the logarithm grows. With
    ``both_ways``, keys after the query have half of all buckets; else, they share the first.

    Returns:
        ``[2 * max_distance + 1]``, ids of ``num_buckets`` buckets
    """
    distances = torch.arange(-config.max_distance, config.max_distance + 1)
    num_buckets = config.num_buckets // 2 if both_ways else config.num_buckets
    offset = (distances > 0) * num_buckets if both_ways else torch.zeros_like(distances)
    away = distances.abs() if both_ways else (-distances).clamp(min=0)
    num_exact = num_buckets // 2
    # In fp32, and in this order, as the models were trained.
    ratio = (away.clamp(min=1).float() / num_exact).log()
    share = ratio / math.log(config.max_distance / num_exact)
    far = num_exact + (share * (num_buckets - num_exact)).long()
    return offset + torch.where(away < num_exact, away, far.clamp(max=num_buckets - 1))


class BucketBias(nn.Module):
    """Learnt: ``weight [num_buckets, heads]``."""

    buckets: Tensor

    def __init__(self, config: RelativeBiasConfig, num_heads: int, both_ways: bool) -> None:
        super().__init__()
        self.max_distance = config.max_distance
        self.weight = nn.Parameter(torch.empty(config.num_buckets, num_heads))
        buckets = distance_buckets(config, both_ways=both_ways)
        self.register_buffer("buckets", buckets, persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        of_distance = functional.embedding(self.buckets, self.weight)
        index = distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return functional.embedding(index, of_distance).permute(0, 3, 1, 2)


def alibi_slopes(num_heads: int) -> Tensor:
    """``[heads]``: ``2^(-8 / n)`` and its powers, for a power of two ``n``.

    For other numbers, every second slope of twice as many heads follows (Press et al. 2021,
    section 3, and their code).
    """
    whole = 2 ** math.floor(math.log2(num_heads))
    exponents = [-8 * (index + 1) / whole for index in range(whole)]
    exponents += [-4 * (2 * index + 1) / whole for index in range(num_heads - whole)]
    return torch.tensor([2.0**exponent for exponent in exponents])


class LinearBias(nn.Module):
    """ALiBi (Press et al. 2021): a slope for each head, times the distance."""

    slopes: Tensor

    def __init__(self, _config: RelativeBiasConfig, num_heads: int, both_ways: bool) -> None:
        super().__init__()
        if both_ways:
            raise ValueError("a linear bias of an encoder is not implemented")
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        return self.slopes[:, None, None] * distances[:, None].to(self.slopes.dtype)


# Each is made of a configuration, the number of heads, and whether a token sees those after it;
# it takes distances (key less query) ``[rows, length, total]`` to ``[rows, heads, length, total]``.
RELATIVE_BIASES: dict[RelativeBiasKind, Callable[[RelativeBiasConfig, int, bool], nn.Module]] = {
    RelativeBiasKind.BUCKETS: BucketBias,
    RelativeBiasKind.LINEAR: LinearBias,
}
