"""Relative position biases: T5's buckets against those of transformers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from transformers.models.t5.modeling_t5 import T5Attention

from model.eager import scaled_dot_product_attention
from model.position_config import RelativeBiasConfig, RelativeBiasKind
from model.relative_bias import BucketedBias, distance_buckets


@settings(max_examples=40)
@given(
    num_buckets=st.integers(2, 20).map(lambda half: 2 * half),
    beyond=st.integers(1, 300),
    bidirectional=st.booleans(),
)
def test_buckets_match_transformers(num_buckets: int, beyond: int, bidirectional: bool) -> None:
    max_distance = num_buckets + beyond
    config = RelativeBiasConfig(
        kind=RelativeBiasKind.BUCKETS, num_buckets=num_buckets, max_distance=max_distance
    )
    distances = torch.arange(-max_distance, max_distance + 1)
    expected = T5Attention._relative_position_bucket(
        distances, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )
    assert torch.equal(distance_buckets(config, bidirectional=bidirectional), expected)


def test_distances_beyond_the_maximum_share_a_bias() -> None:
    config = RelativeBiasConfig(kind=RelativeBiasKind.BUCKETS, num_buckets=8, max_distance=12)
    bias = BucketedBias(config, 4, bidirectional=True)
    torch.nn.init.normal_(bias.weight, generator=torch.Generator().manual_seed(0))
    values = bias(torch.tensor([[[-500, -12, 0, 12, 500]]]))[0, :, 0]  # [heads, distances]
    assert torch.equal(values[:, 0], values[:, 1])
    assert torch.equal(values[:, 3], values[:, 4])
    assert len({tuple(column.tolist()) for column in values.T}) == 3


def test_bias_is_added_to_scaled_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 8, generator=generator)
    key, value = torch.randn(2, 2, 4, 7, 8, generator=generator)
    bias = torch.randn(1, 4, 5, 7, generator=generator)
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=0.3)
    actual = scaled_dot_product_attention(query, key, value, mask, scale=0.3, bias=bias)
    torch.testing.assert_close(actual, expected.transpose(1, 2).flatten(2))
