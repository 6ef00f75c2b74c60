"""Distances and their rows, against transformers and against indices written out."""

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from model.config import (
    AttentionConfig,
    DisentangledConfig,
    DisentangledTerm,
    DistanceKind,
)
from model.disentangled import DisentangledBias, logarithmic, skewed


def distances_of(span: int, max_distance: int, kind: DistanceKind) -> DisentangledConfig:
    terms = (DisentangledTerm.CONTENT_TO_POSITION,)
    return DisentangledConfig(kind=kind, span=span, max_distance=max_distance, terms=terms)


@pytest.mark.parametrize(("span", "furthest"), [(256, 512), (128, 512), (5, 40), (4, 12)])
def test_ranges_are_those_the_models_were_trained_with(span: int, furthest: int) -> None:
    distances = torch.arange(1 - furthest, furthest)
    expected = make_log_bucket_position(distances, span, furthest).long()
    config = distances_of(span, furthest, DistanceKind.LOGARITHMIC)
    assert torch.equal(logarithmic(distances, config), expected)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_skewing_is_an_index(length: int) -> None:
    x = torch.randn(3, length, 2 * length)
    expected = [
        [x[:, i, j - i + length - 1] for j in range(length)] for i in range(length)
    ]  # [length, length] of [3]
    assert torch.equal(skewed(x), torch.stack([torch.stack(row, -1) for row in expected], -2))


def test_keys_of_clipped_distances_by_the_formula() -> None:
    """Shaw et al. 2018, equation 4, without its first term."""
    config = AttentionConfig(
        num_heads=2, num_kv_heads=2, head_size=8, input_bias=False, output_bias=False
    )
    bias = DisentangledBias(config, distances_of(3, 3, DistanceKind.CLIPPED))
    table = torch.randn(6, 16)
    bias.load_state_dict({"content_to_position": table})
    qkv = torch.randn(1, 9, 48)
    scores = bias(qkv)
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        for i in range(9):
            for j in range(9):
                row = table[min(max(i - j, -3), 2) + 3, part]
                expected = qkv[0, i, part] @ row / 8**0.5
                torch.testing.assert_close(scores[0, head, i, j], expected)
