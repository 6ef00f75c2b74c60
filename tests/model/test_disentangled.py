"""Disentangled attention against transformers and explicit formulas."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from model.config import AttentionConfig
from model.disentangled import DisentangledBias, logarithmic, skew
from model.position_config import DisentangledConfig, DisentangledTerm, DistanceKind


def disentangled_config(span: int, max_distance: int, kind: DistanceKind) -> DisentangledConfig:
    terms = (DisentangledTerm.CONTENT_TO_POSITION,)
    return DisentangledConfig(kind=kind, span=span, max_distance=max_distance, terms=terms)


@pytest.mark.parametrize(("span", "furthest"), [(256, 512), (128, 512), (5, 40), (4, 12)])
def test_log_buckets_match_transformers(span: int, furthest: int) -> None:
    distances = torch.arange(1 - furthest, furthest)
    expected = make_log_bucket_position(distances, span, furthest).long()
    config = disentangled_config(span, furthest, DistanceKind.LOGARITHMIC)
    assert torch.equal(logarithmic(distances, config), expected)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_skew_equals_indexing(length: int) -> None:
    x = torch.randn(3, length, 2 * length)
    expected = [
        [x[:, i, j - i + length - 1] for j in range(length)] for i in range(length)
    ]  # [length, length] of [3]
    assert torch.equal(skew(x), torch.stack([torch.stack(row, -1) for row in expected], -2))


@settings(max_examples=20)
@given(
    span=st.integers(1, 12),
    length=st.integers(1, 11),
    num_heads=st.sampled_from((1, 2, 3)),
    scale=st.sampled_from((None, 0.3)),
    seed=st.integers(0, 2**16),
)
def test_clipped_distance_keys_match_the_formula(
    span: int, length: int, num_heads: int, scale: float | None, seed: int
) -> None:
    """Shaw et al. 2018, equation 4, without its first term."""
    size, generator = 8, torch.Generator().manual_seed(seed)
    config = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=size,
        input_bias=False,
        output_bias=False,
        scale=scale,
    )
    bias = DisentangledBias(config, disentangled_config(span, span, DistanceKind.CLIPPED))
    table = torch.randn(2 * span, num_heads * size, generator=generator)
    bias.load_state_dict({"content_to_position": table})
    qkv = torch.randn(1, length, 3 * num_heads * size, generator=generator)
    positions = torch.arange(length)
    rows = (positions[:, None] - positions).clamp(-span, span - 1) + span
    query = qkv[0, :, : num_heads * size].view(length, num_heads, size)
    keys = table.view(-1, num_heads, size)[rows]  # [length, length, heads, size]
    expected = torch.einsum("ihd,ijhd->hij", query, keys) * (scale or size**-0.5)
    torch.testing.assert_close(bias(qkv)[0], expected)
