"""The state of a decoder's mixers, which one running sequence owns."""

from typing import NamedTuple

from torch import Tensor

# Tensors by name.
State = dict[str, Tensor]


class MixerOutput(NamedTuple):
    """``output [batch, length, hidden]`` and the state after the step."""

    output: Tensor
    state: State
