"""LoRA (Hu et al. 2021): low-rank changes of a model's linear maps, trained instead of its weights.

A map ``x W`` becomes ``x W + (alpha / rank) x A B`` with ``A [inputs, rank]`` and ``B [rank,
outputs]``. ``B`` begins with zeros, so that the model begins as it was.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear
from model.experts import MixtureOfExperts
from model.native_checkpoint import ADAPTER_PART
from model.transformer import Transformer
from train.errors import RecipeError
from train.recipe import AdapterRecipe


class LowRank(nn.Module):
    """``(alpha / rank) x A B``, with dropout of ``x``."""

    def __init__(
        self, inputs: int, outputs: int, recipe: AdapterRecipe, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(inputs, recipe.rank))
        self.b = nn.Parameter(torch.zeros(recipe.rank, outputs))
        nn.init.uniform_(self.a, -(inputs**-0.5), inputs**-0.5, generator=generator)
        self.scale, self.dropout = recipe.alpha / recipe.rank, recipe.dropout

    def forward(self, x: Tensor) -> Tensor:
        dropped = functional.dropout(x, self.dropout, self.training)
        return dropped @ self.a @ self.b * self.scale


def add_adapter(
    model: Transformer, recipe: AdapterRecipe, known: Collection[str], seed: int
) -> None:
    """Adds low-rank changes to the linear maps of all layers; weights in ``known`` stay the same.

    Routers of experts, and the experts themselves, are not changed.

    Args:
        known: the names of the weights that the model starts with; others are trained whole.

    Raises:
        RecipeError: the model has no layers of linear maps.
    """
    for name, weight in model.named_parameters():
        weight.requires_grad = name not in known
    generator = torch.Generator().manual_seed(seed)
    routers = {id(part.router) for part in model.modules() if isinstance(part, MixtureOfExperts)}
    maps = [
        part
        for name, part in model.named_modules()
        if isinstance(part, Linear) and ".layers." in name and id(part) not in routers
    ]
    if not maps or model.config.recurrent is not None:
        raise RecipeError("adapter: start_from has no layers of linear maps")
    for part in maps:
        num_inputs, num_outputs = part.weight.shape
        change = LowRank(num_inputs, num_outputs, recipe, generator)
        setattr(part, ADAPTER_PART, change)
        part.register_forward_hook(_add_change)


def _add_change(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    changed: Tensor = output + getattr(module, ADAPTER_PART)(inputs[0])
    return changed


def num_trained(module: nn.Module) -> int:
    """Number of elements of all weights that are trained."""
    return sum(math.prod(x.shape) for x in module.parameters() if x.requires_grad)


def scaled_factors(weights: dict[str, Tensor], recipe: AdapterRecipe) -> dict[str, Tensor]:
    """The trained ``weights`` for a checkpoint, where ``alpha / rank`` is part of each ``B``."""
    ending, scale = f".{ADAPTER_PART}.b", recipe.alpha / recipe.rank
    return {
        name: weight * scale if name.endswith(ending) else weight
        for name, weight in weights.items()
    }
