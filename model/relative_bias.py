"""Relative position biases: added to attention scores by the distance of key and query."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear
from model.position_config import RelativeBiasConfig, RelativeBiasKind


def distance_buckets(config: RelativeBiasConfig, *, bidirectional: bool) -> Tensor:
    """The bucket of every distance (key minus query) from ``-max_distance`` to ``max_distance``.

    Raffel et al. 2020, section 2.1, after their code (mesh-tensorflow): half of the buckets
    hold one distance each, the others logarithmically growing ranges. With ``bidirectional``,
    keys after the query use half of all buckets; without, they share the first.

    Returns:
        ``[2 * max_distance + 1]``, ids of ``num_buckets`` buckets
    """
    distances = torch.arange(-config.max_distance, config.max_distance + 1)
    num_buckets = config.num_buckets // 2 if bidirectional else config.num_buckets
    offset = (distances > 0) * num_buckets if bidirectional else torch.zeros_like(distances)
    magnitudes = distances.abs() if bidirectional else (-distances).clamp(min=0)
    num_exact = num_buckets // 2
    # In fp32 and in this order of operations, as in training.
    ratio = (magnitudes.clamp(min=1).float() / num_exact).log()
    fraction = ratio / math.log(config.max_distance / num_exact)
    far = num_exact + (fraction * (num_buckets - num_exact)).long()
    return offset + torch.where(magnitudes < num_exact, magnitudes, far.clamp(max=num_buckets - 1))


class BucketedBias(nn.Module):
    """Learned biases per bucket (T5): ``weight [num_buckets, heads]``."""

    buckets: Tensor

    def __init__(self, config: RelativeBiasConfig, num_heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.max_distance = config.max_distance
        self.weight = nn.Parameter(torch.empty(config.num_buckets, num_heads))
        buckets = distance_buckets(config, bidirectional=bidirectional)
        self.register_buffer("buckets", buckets, persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        by_distance = functional.embedding(self.buckets, self.weight)  # [distances, heads]
        index = distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return functional.embedding(index, by_distance).permute(0, 3, 1, 2)


class BiasGate(nn.Module):
    """Scales the biases of each query and head (Chi et al. 2022, XLM-E; Chen et al. 2022, WavLM).

    Two gates, of a head's part of the input: ``2 + update * (reset * scale - 1)``.
    """

    def __init__(self, num_heads: int, head_size: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.map = Linear(head_size, 2, bias=True)
        self.scale = nn.Parameter(torch.empty(num_heads))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """``x [batch, length, hidden]`` and ``bias [1, heads, length, total]`` to a bias by row."""
        heads = x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
        update, reset = torch.sigmoid(self.map(heads)).chunk(2, -1)  # [batch, heads, length, 1]
        factors: Tensor = 2.0 + update * (reset * self.scale[:, None, None] - 1.0)
        return factors * bias


def alibi_slopes(num_heads: int) -> Tensor:
    """``[heads]``: the powers of ``2^(-8 / n)``, for ``n`` heads, a power of two.

    For other numbers, the slopes of the next lower power of two are followed by every second
    slope of the next higher one (Press et al. 2021, section 3, and their code).
    """
    power_of_two = 2 ** math.floor(math.log2(num_heads))
    exponents = [-8 * (index + 1) / power_of_two for index in range(power_of_two)]
    num_others = num_heads - power_of_two
    exponents += [-4 * (2 * index + 1) / power_of_two for index in range(num_others)]
    return torch.tensor([2.0**exponent for exponent in exponents])


class AlibiBias(nn.Module):
    """ALiBi (Press et al. 2021): each head's slope times the distance."""

    slopes: Tensor

    def __init__(self, _config: RelativeBiasConfig, num_heads: int, bidirectional: bool) -> None:
        super().__init__()
        if bidirectional:
            raise ValueError("ALiBi in an encoder is not implemented")
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        return self.slopes[:, None, None] * distances[:, None].to(self.slopes.dtype)


class RoundedAlibiBias(nn.Module):
    """ALiBi as ``transformers`` computes it for Falcon: slope times key position, in bfloat16.

    For the keys of one query only differences matter, so positions can replace distances. Rounding
    makes neighbours equal: from position 256 on, some neighbours have the same bias.
    """

    table: Tensor

    def __init__(self, config: RelativeBiasConfig, num_heads: int, bidirectional: bool) -> None:
        super().__init__()
        if bidirectional:
            raise ValueError("ALiBi in an encoder is not implemented")
        slopes = alibi_slopes(num_heads).bfloat16()
        rounded = slopes[:, None] * torch.arange(config.max_distance)  # [heads, positions]
        self.register_buffer("table", config.scale * rounded.float(), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        biases = self.table.index_select(1, torch.arange(distances.shape[2]))
        return biases[None, :, None] + 0 * distances[:, None].to(biases.dtype)


# Constructor arguments: configuration, number of heads, whether attention is bidirectional.
# forward: distances (key minus query) [rows, length, total] to [rows, heads, length, total].
RELATIVE_BIASES: dict[RelativeBiasKind, Callable[[RelativeBiasConfig, int, bool], nn.Module]] = {
    RelativeBiasKind.BUCKETS: BucketedBias,
    RelativeBiasKind.LINEAR: AlibiBias,
    RelativeBiasKind.LINEAR_BF16: RoundedAlibiBias,
}
