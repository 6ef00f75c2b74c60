"""The weights of mixtures of experts in checkpoints."""

from functools import partial

import torch
from torch import Tensor

from export.importers.decoder_names import (
    CHOICE_BIAS,
    DOWN,
    GATES,
    ROUTER,
    SHARED_DOWN,
    SHARED_GATE,
    SHARED_GATES,
    TARGET,
    Names,
)
from export.importers.renaming import (
    Rename,
    Transform,
    chained,
    interleave_halves,
    linear,
    same,
    stacked_experts,
)
from model.config import ExpertsConfig


def _centred(bias: Tensor) -> Tensor:
    """``bias`` without its mean, which changes no order and costs digits in half precision."""
    return (bias - bias.mean()).flatten()


def experts_table(names: Names, mixture: ExpertsConfig, output: Transform = same) -> list[Rename]:
    """The weights of ``mixture``; ``{e}`` is an expert's number.

    Names without ``{e}`` are for all experts' matrices, in which gates come first. Without a name,
    the bias that balances experts is 0.
    """
    table = linear(ROUTER, *names[ROUTER], bias=False)
    if mixture.routing is not None:
        biases = names[CHOICE_BIAS]
        absent = partial(torch.zeros, mixture.count)
        table.append(Rename(CHOICE_BIAS, biases, _centred if biases else absent))
    if (shared := mixture.shared) is not None:
        table += linear(SHARED_GATES, *names[SHARED_GATES], bias=False)
        table += linear(SHARED_DOWN, *names[SHARED_DOWN], bias=False, rows=output)
        if shared.has_gate:
            table += linear(SHARED_GATE, *names[SHARED_GATE], bias=False)
    if "{e}" not in names[GATES][0]:
        (gates,), (down,) = names[GATES], names[DOWN]
        return [
            *table,
            Rename(f"{TARGET}.feed_forward.input.weight", (f"{gates}.weight",), interleave_halves),
            Rename(f"{TARGET}.feed_forward.output.weight", (f"{down}.weight",), output),
        ]
    for target, experts, change in (
        (f"{TARGET}.feed_forward.input", GATES, same),
        (f"{TARGET}.feed_forward.output", DOWN, output),
    ):
        sources = [
            f"{name}.weight".replace("{e}", str(expert))
            for expert in range(mixture.count)
            for name in names[experts]
        ]
        stack = stacked_experts(len(names[experts]))
        table.append(Rename(f"{target}.weight", tuple(sources), chained(stack, change)))
    return table
