"""Weights before training."""

import math

import torch
from torch import Tensor

from model.config import ModelConfig
from model.transformer import parameter_shapes


def random_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Weights for a model of ``config``, the same for the same ``seed``.

    Matrices are uniform as Glorot and Bengio 2010 have it, embeddings normal with variance
    ``1 / size`` as in tensor2tensor, norms ones, biases zeros.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in parameter_shapes(config).items():
        if name.startswith(("embedding.", "target_placement.")) and len(shape) == 2:
            weights[name] = torch.randn(shape, generator=generator) / math.sqrt(shape[1])
        elif len(shape) >= 2 and name.endswith("weight"):  # of experts, each a matrix
            bound = math.sqrt(6 / sum(shape[-2:]))
            weights[name] = (torch.rand(shape, generator=generator) * 2 - 1) * bound
        elif name.endswith("bias"):
            weights[name] = torch.zeros(shape)
        else:
            weights[name] = torch.ones(shape)
    return weights
