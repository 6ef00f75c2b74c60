"""The readout of a recurrent decoder: its output at a step, before the output matrix."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from model.recurrent_config import ReadoutKind


class Readable(NamedTuple):
    """The inputs of a readout at one step, ``[batch, size]`` each.

    ``before``, ``after``: the top layer's state; ``context``: that of the alignment, if there is
    one; ``token``: the embedding of the step's input token.
    """

    before: Tensor
    after: Tensor
    context: list[Tensor]
    token: Tensor


class Readout(NamedTuple):
    """Selects the inputs of a linear map, and turns its outputs into ``hidden_size`` features.

    ``num_outputs``: number of the map's outputs per feature.
    """

    inputs: Callable[[Readable], list[Tensor]]
    activation: Callable[[Tensor], Tensor]
    num_outputs: int


def maxout(x: Tensor) -> Tensor:
    """The maximum of each pair of neighbours: ``[batch, 2 * size]`` to ``[batch, size]``."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return torch.maximum(pairs[..., 0], pairs[..., 1])


READOUTS: dict[ReadoutKind, Readout] = {
    ReadoutKind.TANH: Readout(lambda step: [step.after, *step.context], torch.tanh, 1),
    ReadoutKind.MAXOUT: Readout(lambda step: [step.before, *step.context, step.token], maxout, 2),
}
