"""Recurrent cells: one step in plain tensor operations, and a loop over whole sources."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.recurrent_config import CellKind

# Tensors [batch, size]: ``(hidden,)`` for a GRU, ``(hidden, cell)`` for an LSTM.
CellState = tuple[Tensor, ...]


class CellWeights(NamedTuple):
    """``input [inputs, gates * size]`` and ``recurrent [size, gates * size]``, with biases.

    The gates are in the order of ``torch.nn``: reset, update, new in a GRU; input, forget, cell,
    output in an LSTM.
    """

    input: Tensor
    input_bias: Tensor
    recurrent: Tensor
    recurrent_bias: Tensor


class RecurrentOutput(NamedTuple):
    """``outputs [batch, length, size]``, zero where padded, and the state after the last token."""

    outputs: Tensor
    state: CellState


def gru_step(from_input: Tensor, from_state: Tensor, state: CellState) -> CellState:
    """``torch.nn.GRU``: ``n = tanh(W x + r * (U h))``, ``h' = (1 - z) * n + z * h``."""
    (hidden,) = state
    input_reset, input_update, input_new = from_input.chunk(3, -1)
    reset, update, new = from_state.chunk(3, -1)
    reset = torch.sigmoid(input_reset + reset)
    update = torch.sigmoid(input_update + update)
    new = torch.tanh(input_new + reset * new)
    return ((1 - update) * new + update * hidden,)


def lstm_step(from_input: Tensor, from_state: Tensor, state: CellState) -> CellState:
    """``torch.nn.LSTM``: ``c' = f * c + i * g``, ``h' = o * tanh(c')``."""
    _, cell = state
    entry, forget, new, output = (from_input + from_state).chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(entry) * torch.tanh(new)
    return torch.sigmoid(output) * torch.tanh(cell), cell


class CellType(NamedTuple):
    """``state``: names of the state's tensors; ``step``: from products and state to the new state.

    ``onnx_order``: indices of our gates in the order of ONNX's operator.
    """

    step: Callable[[Tensor, Tensor, CellState], CellState]
    num_gates: int
    state: tuple[str, ...]
    onnx_order: tuple[int, ...]


CELLS: dict[CellKind, CellType] = {
    CellKind.GRU: CellType(gru_step, 3, ("hidden",), (1, 0, 2)),
    CellKind.LSTM: CellType(lstm_step, 4, ("hidden", "cell"), (0, 3, 1, 2)),
}


def zero_state(kind: CellKind, like: Tensor, size: int) -> CellState:
    """The state ``[batch, size]`` before the first token of ``like [batch, ...]``."""
    return tuple(like.new_zeros(like.shape[0], size) for _ in CELLS[kind].state)


class Cell(nn.Module):
    """One layer in one direction."""

    def __init__(self, kind: CellKind, inputs: int, size: int) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        width = CELLS[kind].num_gates * size
        self.input = Linear(inputs, width, bias=True)
        self.recurrent = Linear(size, width, bias=True)

    @property
    def weights(self) -> CellWeights:
        weights = (self.input.weight, self.input.bias, self.recurrent.weight, self.recurrent.bias)
        return CellWeights(*weights)  # type: ignore[arg-type]  # Linear's bias may be None

    def forward(self, x: Tensor, state: CellState) -> CellState:
        """Runs one step on ``x [batch, inputs]``; returns the new state."""
        return CELLS[self.kind].step(self.input(x), self.recurrent(state[0]), state)


def run_cell(
    x: Tensor, lengths: Tensor, weights: CellWeights, kind: CellKind, *, reverse: bool
) -> RecurrentOutput:
    """Runs a cell over ``x [batch, length, inputs]``, right-padded to ``lengths [batch]``.

    Args:
        reverse: runs from each row's last token to its first.
    """
    step = CELLS[kind].step
    products = x @ weights.input + weights.input_bias  # [batch, length, gates * size]
    state = zero_state(kind, x, weights.recurrent.shape[0])
    outputs: list[Tensor] = []
    order = range(x.shape[1])
    for index in reversed(order) if reverse else order:
        from_state = state[0] @ weights.recurrent + weights.recurrent_bias
        new = step(products[:, index], from_state, state)
        valid = (index < lengths)[:, None]
        state = tuple(torch.where(valid, *pair) for pair in zip(new, state, strict=True))
        outputs.append(torch.where(valid, new[0], 0.0))
    return RecurrentOutput(torch.stack(outputs[::-1] if reverse else outputs, 1), state)
