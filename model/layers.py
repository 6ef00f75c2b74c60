"""Layers and stacks of layers: Vaswani et al. 2017, figure 1, with its variants."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.basics import ACTIVATIONS, Linear, make_norm
from model.config import (
    Branches,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormOrder,
    StackConfig,
)
from model.experts import MixtureOfExperts
from model.kernels import AttentionKernels, AttentionPositions, KeyValue, Step
from model.mixers import DECODER_MIXERS, ENCODER_MIXERS, CrossAttention, Mixed, State
from model.positions import SIGNALS, PositionTables


class Residual(NamedTuple):
    """Where a block normalises: ``leave(norm, x, f(enter(norm, x)))``."""

    enter: Callable[[nn.Module, Tensor], Tensor]
    leave: Callable[[nn.Module, Tensor, Tensor], Tensor]


class Sandwich(nn.Module):
    """Two norms: of what a block reads and of what it gives."""

    def __init__(self, size: int, config: NormConfig) -> None:
        super().__init__()
        self.before = make_norm(size, config)
        self.after = make_norm(size, config)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """``x`` plus what the block gives for it, ``y``."""
        total: Tensor = x + self.after(y)
        return total


RESIDUALS: dict[NormOrder, Residual] = {
    # Vaswani et al. 2017: norm(x + f(x))
    NormOrder.POST: Residual(lambda _, x: x, lambda norm, x, y: norm(x + y)),
    # Xiong et al. 2020: x + f(norm(x))
    NormOrder.PRE: Residual(lambda norm, x: norm(x), lambda _, x, y: x + y),
    # Ding et al. 2021, section 2.3: x + norm'(f(norm(x)))
    NormOrder.SANDWICH: Residual(
        lambda norm, x: norm.get_submodule("before")(x), lambda norm, x, y: norm(x, y)
    ),
}
BLOCK_NORMS: dict[NormOrder, Callable[[int, NormConfig], nn.Module]] = {
    NormOrder.POST: make_norm,
    NormOrder.PRE: make_norm,
    NormOrder.SANDWICH: Sandwich,
}
# What the feed-forward reads, of the stream before the mixer and after it.
BRANCHES: dict[Branches, Callable[[Tensor, Tensor], Tensor]] = {
    Branches.SEQUENTIAL: lambda _, after: after,
    Branches.PARALLEL: lambda before, _: before,
}


def block_norm(size: int, layer: LayerConfig, own: NormConfig | None = None) -> nn.Module:
    """What the :class:`Residual` of ``layer`` normalises with: ``own``, or the layer's."""
    return BLOCK_NORMS[layer.norm_order](size, own or layer.norm)


class FeedForward(nn.Module):
    """``activation(x W1) W2``, or gated: ``(activation(x W1) * x V) W2`` (Shazeer 2020)."""

    def __init__(self, hidden_size: int, config: FeedForwardConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.activation = ACTIVATIONS[config.activation]
        width = config.inner_size * (2 if config.gated else 1)
        self.input = Linear(hidden_size, width, bias=config.bias)
        self.output = Linear(config.inner_size, hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.input(x)
        if self.gated:
            gate, up = inner.chunk(2, -1)
            inner = self.activation(gate) * up
        else:
            inner = self.activation(inner)
        output: Tensor = self.output(inner)
        return output


def make_feed_forward(
    hidden_size: int, config: FeedForwardConfig, kernels: AttentionKernels
) -> nn.Module:
    """One feed-forward, or a mixture of them."""
    if config.experts is None:
        return FeedForward(hidden_size, config)
    return MixtureOfExperts(hidden_size, config, config.experts, kernels)


def tokens_at(hidden: Tensor, chosen: Tensor) -> Tensor:
    """``hidden [batch, length, size]`` at ``chosen [n]`` of ``batch * length``: ``[n, size]``."""
    return hidden.reshape(-1, hidden.shape[2]).index_select(0, chosen)


class EncoderLayer(nn.Module):
    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: AttentionKernels) -> None:
        super().__init__()
        self.residual = RESIDUALS[layer.norm_order]
        self.feed_forward_reads = BRANCHES[layer.branches]
        self.mixer: nn.Module | None = None
        if layer.mixer is not None:
            self.mixer = ENCODER_MIXERS[layer.mixer](hidden_size, layer, kernels)
            self.mixer_norm = block_norm(hidden_size, layer, layer.mixer_norm)
        self.feed_forward: nn.Module | None = None
        if layer.feed_forward is not None:
            self.feed_forward = make_feed_forward(hidden_size, layer.feed_forward, kernels)
            self.feed_forward_norm = block_norm(hidden_size, layer)

    def forward(self, x: Tensor, lengths: Tensor, positions: AttentionPositions) -> Tensor:
        enter, leave = self.residual
        before = x
        if self.mixer is not None:
            norm = self.mixer_norm
            x = leave(norm, x, self.mixer(enter(norm, x), lengths, positions))
        if self.feed_forward is not None:
            norm = self.feed_forward_norm
            read = enter(norm, self.feed_forward_reads(before, x))
            x = leave(norm, x, self.feed_forward(read))
        return x


class DecoderLayer(nn.Module):
    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: AttentionKernels) -> None:
        super().__init__()
        self.residual = RESIDUALS[layer.norm_order]
        self.feed_forward_reads = BRANCHES[layer.branches]
        self.mixer: nn.Module | None = None
        if layer.mixer is not None:
            self.mixer = DECODER_MIXERS[layer.mixer](hidden_size, layer, kernels)
            self.mixer_norm = block_norm(hidden_size, layer, layer.mixer_norm)
        self.cross_attention: CrossAttention | None = None
        if layer.cross_attention is not None:
            self.cross_attention = CrossAttention(hidden_size, layer.cross_attention, kernels)
            self.cross_attention_norm = block_norm(hidden_size, layer)
        self.feed_forward: nn.Module | None = None
        if layer.feed_forward is not None:
            self.feed_forward = make_feed_forward(hidden_size, layer.feed_forward, kernels)
            self.feed_forward_norm = block_norm(hidden_size, layer)

    def forward(
        self,
        x: Tensor,
        step: Step,
        state: State,
        positions: AttentionPositions,
        chosen: Tensor | None = None,
    ) -> Mixed:
        """``state`` holds the mixer's state, and ``cross_key`` and ``cross_value`` of a source.

        ``chosen``: tokens of ``[batch * length]`` that go on from where all keys are made.
        """
        enter, leave = self.residual
        before, after = x, State()
        if self.mixer is not None:
            norm = self.mixer_norm
            own = {name: x for name, x in state.items() if not name.startswith("cross_")}
            mixed = self.mixer(enter(norm, x), step, own, positions)
            x, after = leave(norm, x, mixed.output), dict(mixed.state)
        if self.cross_attention is not None:
            norm = self.cross_attention_norm
            memory = KeyValue(state["cross_key"], state["cross_value"])
            mixed = self.cross_attention(enter(norm, x), step, memory)
            x, after = leave(norm, x, mixed.output), after | mixed.state
        if chosen is not None:
            x, before = tokens_at(x, chosen)[None], tokens_at(before, chosen)[None]
        if self.feed_forward is not None:
            norm = self.feed_forward_norm
            read = enter(norm, self.feed_forward_reads(before, x))
            x = leave(norm, x, self.feed_forward(read))
        return Mixed(x, after)


class _Stack(nn.Module):
    """Layers, the positions that their attention shares, and a last norm."""

    def __init__(
        self, config: ModelConfig, stack: StackConfig, layers: list[nn.Module], *, both_ways: bool
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.order = stack.applied
        self.positions = PositionTables(config.position.max_positions, stack, both_ways=both_ways)
        self.signal = SIGNALS[stack.signal](
            config.position.max_positions, len(stack.applied), config.hidden_size
        )
        self.final_norm: nn.Module = nn.Identity()
        if stack.final_norm is not None:
            self.final_norm = make_norm(config.hidden_size, stack.final_norm)

    @property
    def applied(self) -> list[nn.Module]:
        """The layers in the order in which they are applied; shared ones several times."""
        return [self.layers[index] for index in self.order]


class Encoder(_Stack):
    def __init__(self, config: ModelConfig, stack: StackConfig, kernels: AttentionKernels) -> None:
        layers = [EncoderLayer(config.hidden_size, layer, kernels) for layer in stack.layers]
        super().__init__(config, stack, [*layers], both_ways=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """``x [batch, length, hidden]``, of which each row's first ``lengths [batch]`` count."""
        places = torch.arange(x.shape[1])[None]
        shared = self.positions.of_sequence(x.shape[1])
        for time, (layer, positions) in enumerate(zip(self.applied, shared, strict=True), 1):
            x = layer(self.signal(x, places, time), lengths, positions)
        normed: Tensor = self.final_norm(x)
        return normed


class Decoder(_Stack):
    def __init__(self, config: ModelConfig, stack: StackConfig, kernels: AttentionKernels) -> None:
        layers = [DecoderLayer(config.hidden_size, layer, kernels) for layer in stack.layers]
        super().__init__(config, stack, [*layers], both_ways=False)

    def remember(self, encoded: Tensor) -> list[State]:
        """Each layer's cross-attention memory of ``encoded [batch, source_length, hidden]``."""
        states: list[State] = []
        for layer in self.applied:
            if not isinstance(layer, DecoderLayer) or layer.cross_attention is None:
                raise ValueError("this decoder has no cross-attention")
            memory = layer.cross_attention.remember(encoded)
            states.append({"cross_key": memory.key, "cross_value": memory.value})
        return states

    def forward(
        self, x: Tensor, step: Step, states: list[State], chosen: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """``x [batch, length, hidden]`` and one state for each layer, before and after.

        ``chosen``: tokens of ``[batch * length]``; what comes back is ``[1, chosen, hidden]``, and
        the last feed-forward reads no others.
        """
        after: list[State] = []
        places = step.num_cached_tokens[:, None] + torch.arange(x.shape[1])
        shared = self.positions.of_step(x.shape[1], step)
        every = zip(self.applied, states, shared, strict=True)
        for time, (layer, state, positions) in enumerate(every, 1):
            last = chosen if time == len(self.order) else None
            x, state_after = layer(self.signal(x, places, time), step, state, positions, last)
            after.append(state_after)
        return self.final_norm(x), after
