"""Stacks in which tokens run different numbers of steps: adaptive computation time.

Graves 2016, for each token of a Universal Transformer (Dehghani et al. 2019, section 2.2). A step
is one application of a layer. Before it, a gate reads the layer's input and gives the token's
halting probability. A token halts at the step at which the sum of its probabilities reaches
``1 - epsilon``, at the latest at the last one. From then on its state is copied: later steps
still compute its keys and values, which other tokens attend to. Graphs run all steps, so that a
token's cache is complete; halting changes what they compute, not how long they take.

The output is the mean of the token's states after each of its steps (Graves 2016, equation 13),
weighted with the halting probabilities; the last state has the remainder, so the weights sum to 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import HaltingConfig, ModelConfig, StackConfig
from model.kernels import ModelKernels, Step
from model.layers import select_tokens
from model.mixer_state import State
from model.stacks import Decoder, Encoder


class Ponder(NamedTuple):
    """Statistics of a stack's tokens, ``[batch, length]`` each or ``[1, n]`` of selected tokens.

    Attributes:
        updates: ``N``, the number of steps of each token; int32.
        remainders: ``R``, the weight of each token's last state. Graves 2016, equation 14, calls
            ``N + R`` the ponder time.
        lengths: ``[batch]``, valid tokens of each right-padded row.
    """

    updates: Tensor
    remainders: Tensor
    lengths: Tensor


class Progress(NamedTuple):
    """The state of each token after some steps.

    ``running [batch, length]``: it has not halted. ``total``: the sum of its weights. ``output``:
    the weighted sum of its states.
    """

    running: Tensor
    total: Tensor
    updates: Tensor
    remainders: Tensor
    output: Tensor

    def select(self, positions: Tensor) -> "Progress":
        """The tokens at flat ``positions [n]``, as one row."""
        return Progress(
            running=_select(self.running, positions),
            total=_select(self.total, positions),
            updates=_select(self.updates, positions),
            remainders=_select(self.remainders, positions),
            output=select_tokens(self.output, positions)[None],
        )


def _select(x: Tensor, positions: Tensor) -> Tensor:
    """``x [batch, length]`` at flat ``positions [n]``: ``[1, n]``."""
    return select_tokens(x[..., None], positions)[None, :, 0]


class Report(nn.Module):
    """Returns its argument. Hooks read it: see :func:`record_ponder`."""

    def forward(self, ponder: Ponder) -> Ponder:
        return ponder


class Halting(nn.Module):
    """The halting gate, ``sigmoid(W x + b)``, which all steps share."""

    def __init__(self, hidden_size: int, config: HaltingConfig) -> None:
        super().__init__()
        self.threshold = 1 - config.epsilon
        self.gate = Linear(hidden_size, 1, bias=True)
        self.report = Report()

    @staticmethod
    def begin(x: Tensor) -> Progress:
        """The progress before the first step of ``x [batch, length, hidden]``."""
        zeros = torch.zeros_like(x[..., 0])
        return Progress(zeros == 0, zeros, zeros.to(torch.int32), zeros, torch.zeros_like(x))

    def weigh(self, x: Tensor, progress: Progress, *, is_last: bool) -> Tensor:
        """The weight of each token's state after this step, ``[batch, length]``.

        ``x [batch, length, hidden]`` is the input of the step's layer.
        """
        probability = torch.sigmoid(self.gate(x)[..., 0])
        remainder = 1 - progress.total
        if is_last:
            return torch.where(progress.running, remainder, 0.0)
        halts = progress.total + probability >= self.threshold
        return torch.where(progress.running, torch.where(halts, remainder, probability), 0.0)

    def update(self, weight: Tensor, state: Tensor, progress: Progress) -> Progress:
        """The progress after a step that gave ``state [batch, length, hidden]``."""
        total = progress.total + weight
        was_running = progress.running
        running = was_running & (total < self.threshold)
        return Progress(
            running=running,
            total=total,
            updates=progress.updates + was_running.to(torch.int32),
            remainders=torch.where(was_running & ~running, weight, progress.remainders),
            output=progress.output + weight[..., None] * state,
        )


def _halting(config: ModelConfig, stack: StackConfig) -> Halting:
    if stack.halting is None:
        raise ValueError("this stack has no halting")
    return Halting(config.hidden_size, stack.halting)


class AdaptiveEncoder(Encoder):
    """Encoder layers in order, each token until it halts."""

    def __init__(self, config: ModelConfig, stack: StackConfig, kernels: ModelKernels) -> None:
        super().__init__(config, stack, kernels)
        self.halting = _halting(config, stack)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor,
        num_global: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        progress, last = self.halting.begin(x), len(self.order)
        token_positions = torch.arange(x.shape[1])[None]  # [1, length]
        encodings = self.positions.for_sequence(x.shape[1], num_global, segments)
        for depth, (layer, encoding) in enumerate(zip(self.applied, encodings, strict=True), 1):
            inputs, positions = self.signal(x, encoding, token_positions, depth)
            weight = self.halting.weigh(inputs, progress, is_last=depth == last)
            state = layer(inputs, lengths, positions)
            x = torch.where(progress.running[..., None], state, x)
            progress = self.halting.update(weight, state, progress)
        self.halting.report(Ponder(progress.updates, progress.remainders, lengths))
        normed: Tensor = self.final_norm(progress.output)
        return normed


class AdaptiveDecoder(Decoder):
    """Decoder layers in order, each token until it halts."""

    def __init__(self, config: ModelConfig, stack: StackConfig, kernels: ModelKernels) -> None:
        super().__init__(config, stack, kernels)
        self.halting = _halting(config, stack)

    def forward(
        self, x: Tensor, step: Step, states: list[State], logit_positions: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        progress, last = self.halting.begin(x), len(self.order)
        new_states: list[State] = []
        token_positions = step.num_cached_tokens[:, None] + torch.arange(x.shape[1])
        encodings = self.positions.for_step(x.shape[1], step)
        layers = zip(self.applied, states, encodings, strict=True)
        for depth, (layer, past, encoding) in enumerate(layers, 1):
            inputs, positions = self.signal(x, encoding, token_positions, depth)
            weight = self.halting.weigh(inputs, progress, is_last=depth == last)
            selected = logit_positions if depth == last else None
            state, new_state = layer(inputs, step, past, positions, selected)
            new_states.append(new_state)
            if selected is not None:
                progress = progress.select(selected)
                weight = _select(weight, selected)
            elif depth < last:
                x = torch.where(progress.running[..., None], state, x)
            progress = self.halting.update(weight, state, progress)
        self.halting.report(Ponder(progress.updates, progress.remainders, step.num_new_tokens))
        return self.final_norm(progress.output), new_states


@contextmanager
def record_ponder(model: nn.Module) -> Iterator[list[Ponder]]:
    """Collects what the stacks of ``model`` report while the context is open."""
    found: list[Ponder] = []

    def append(_module: nn.Module, _inputs: object, ponder: Ponder) -> None:
        found.append(ponder)

    reports = [module for module in model.modules() if isinstance(module, Report)]
    handles = [report.register_forward_hook(append) for report in reports]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
