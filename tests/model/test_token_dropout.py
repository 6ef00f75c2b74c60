"""Token dropout of embeddings against its formula (Rives et al. 2021), and pooling after layers."""

import numpy as np
import pytest
import torch

from model.config import (
    Activation,
    DenseConfig,
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    Kind,
    ModelConfig,
    PoolingKind,
    StackConfig,
)
from model.embeddings import TokenEmbedding
from model.heads import ClassificationHead
from model.position_config import PositionConfig, PositionKind

MASK, SIZE = 4, 6


def config(head: HeadConfig) -> ModelConfig:
    return ModelConfig(
        kind=Kind.ENCODER,
        vocabulary_size=9,
        hidden_size=SIZE,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=8),
        embedding=EmbeddingConfig(dropped_token=MASK),
        encoder=StackConfig(layers=()),
        head=head,
    )


EMBEDDING = HeadConfig(kind=HeadKind.EMBEDDING, pooling=PoolingKind.MEAN)
# No mask, one of four, and masks alone; 0 is padding.
ROWS = [[1, 2, 3, 5, 6], [1, MASK, 3, 5, 0], [MASK, MASK, 0, MASK, 0]]
LENGTHS = [5, 4, 2]


@torch.no_grad()
def test_masks_are_zero_and_other_tokens_scaled() -> None:
    embedding = TokenEmbedding(config(EMBEDDING))
    table = torch.randn(9, SIZE, generator=torch.Generator().manual_seed(0))
    embedding.tokens.weight.copy_(table)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    actual = embedding.embed(torch.tensor(ROWS), lengths=lengths).numpy()
    for row, length, vectors in zip(ROWS, LENGTHS, actual, strict=True):
        valid = row[:length]
        kept = 1 - valid.count(MASK) / length
        for id_, vector in zip(valid, vectors, strict=False):
            scale = 0.0 if id_ == MASK else (1 - 0.15 * 0.8) / kept
            np.testing.assert_allclose(vector, scale * table[id_].numpy(), rtol=1e-6)


def test_token_dropout_needs_lengths() -> None:
    with pytest.raises(ValueError, match="need lengths"):
        TokenEmbedding(config(EMBEDDING)).embed(torch.tensor(ROWS))


@torch.no_grad()
def test_pooling_comes_after_the_dense_layers() -> None:
    dense = DenseConfig(size=3, activation=Activation.RELU)
    head = ClassificationHead(
        config(
            HeadConfig(
                kind=HeadKind.CLASSIFICATION,
                bias=True,
                pooling=PoolingKind.MEAN,
                pools_last=True,
                dense=(dense,),
                num_labels=2,
            )
        )
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in head.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(1, 4, SIZE, generator=generator)
    weights = {name: x.numpy() for name, x in head.named_parameters()}
    inner = hidden[0, :3].numpy() @ weights["dense.0.linear.weight"]
    inner = np.maximum(inner + weights["dense.0.linear.bias"], 0).mean(0)
    expected = inner @ weights["output.weight"] + weights["output.bias"]
    actual = head(hidden, torch.tensor([3], dtype=torch.int32))
    np.testing.assert_allclose(actual[0].numpy(), expected, rtol=1e-5)


def test_images_are_pooled_before_the_dense_layers() -> None:
    head = HeadConfig(kind=HeadKind.EMBEDDING, pooling=PoolingKind.PATCH_MEAN, pools_last=True)
    with pytest.raises(ValueError, match="patch_mean comes before dense layers"):
        ClassificationHead(config(head))
