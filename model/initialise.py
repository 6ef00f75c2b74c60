"""Random weights for a model before training."""

import math

import torch
from torch import Tensor

from model.config import ModelConfig
from model.transformer import parameter_shapes

EMBEDDINGS = ("embedding.", "target_embedding.", "target_tokens.")
PATCHES = "embedding.patches.weight"


def random_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Weights for a model of ``config``; the same ``seed`` gives the same weights.

    Matrices, including those of patches, are uniform (Glorot and Bengio 2010); embeddings,
    positions and class tokens are normal with variance ``1 / size`` (tensor2tensor); norm weights
    are one, biases and sinks zero.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in parameter_shapes(config).items():
        is_embedding = name.startswith(EMBEDDINGS) and name != PATCHES
        if is_embedding and len(shape) == 2:
            weights[name] = torch.randn(shape, generator=generator) / math.sqrt(shape[1])
        elif len(shape) >= 2 and name.endswith("weight"):  # experts: a stack of matrices
            bound = math.sqrt(6 / sum(shape[-2:]))
            weights[name] = (torch.rand(shape, generator=generator) * 2 - 1) * bound
        elif name.endswith(("bias", "sinks")):
            weights[name] = torch.zeros(shape)
        else:
            weights[name] = torch.ones(shape)
    return weights
