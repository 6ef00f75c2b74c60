"""What a recurrent decoder makes of a step: its output, before the output matrix."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from model.recurrent_config import ReadoutKind


class Readable(NamedTuple):
    """What a readout reads of one step, ``[batch, size]`` each.

    ``before``, ``after``: the top layer's state; ``context``: of the alignment, if there is one;
    ``token``: the embedding that the step read.
    """

    before: Tensor
    after: Tensor
    context: list[Tensor]
    token: Tensor


class Readout(NamedTuple):
    """From what a step has to the inputs of a linear map, and from its outputs to ``hidden_size``.

    ``num_outputs``: of the map, for each output of the decoder.
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
