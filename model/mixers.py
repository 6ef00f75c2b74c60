"""What lets tokens see each other: self-attention, cross-attention, and a recurrent unit.

A decoder's mixer keeps *state* between steps, by name: tensors that belong to one running
sequence. An empty state means that nothing came before.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from model.basics import Linear, make_norm
from model.config import AttentionConfig, FeedForwardConfig, LayerConfig, MixerKind
from model.disentangled import DisentangledBias
from model.eager import attend, split_heads, split_qkv
from model.kernels import AttentionKernels, AttentionPositions, KeyValue, Step

State = dict[str, Tensor]
_Part = TypeVar("_Part", AttentionConfig, FeedForwardConfig)


class Mixed(NamedTuple):
    """``output [batch, length, hidden]`` and the state after it."""

    output: Tensor
    state: State


def required(part: _Part | None) -> _Part:
    """``part``, of a layer that must have it.

    Raises:
        ValueError: there is none.
    """
    if part is None:
        raise ValueError("this layer lacks an attention or a feed-forward configuration")
    return part


class SelfAttention(nn.Module):
    """Multi-head (or grouped-query, Ainslie et al. 2023) attention of a sequence to itself."""

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: AttentionKernels) -> None:
        super().__init__()
        self.config = config = required(layer.attention)
        self.kernels = kernels
        packed_heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv = Linear(hidden_size, packed_heads * config.head_size, bias=config.input_bias)
        self.output = Linear(
            config.num_heads * config.head_size, hidden_size, bias=config.output_bias
        )
        if config.head_norm is not None:
            self.query_norm = make_norm(config.head_size, config.head_norm)
            self.key_norm = make_norm(config.head_size, config.head_norm)

    def packed(self, x: Tensor) -> Tensor:
        """``x [batch, length, hidden]`` as what the kernels take: queries, keys and values."""
        qkv: Tensor = self.qkv(x)
        if self.config.head_norm is None:
            return qkv
        query, key, value = split_qkv(qkv, self.config)
        heads = (query.shape[0], query.shape[1], -1, self.config.head_size)
        query = self.query_norm(query.reshape(heads)).flatten(2)
        key = self.key_norm(key.reshape(heads)).flatten(2)
        return torch.cat([query, key, value], -1)


class GlobalTokens(nn.Module):
    """What a text's first tokens see of all of it (Beltagy et al. 2020, section 3.1).

    They are few, so plain tensor operations do.
    """

    def __init__(self, hidden_size: int, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        kv_size = 2 * config.num_kv_heads * config.head_size
        inner_size = config.num_heads * config.head_size
        self.query = Linear(hidden_size, inner_size, bias=config.input_bias)
        self.key_value = Linear(hidden_size, kv_size, bias=config.input_bias)

    def forward(self, x: Tensor, context: Tensor, lengths: Tensor) -> Tensor:
        """``context [batch, length, heads * head_size]``, the first tokens' replaced."""
        config = self.config
        query = split_heads(self.query(x[:, : config.num_global_tokens]), config.num_heads)
        key, value = self.key_value(x).chunk(2, -1)
        key, value = (split_heads(part, config.num_kv_heads) for part in (key, value))
        allowed = torch.arange(x.shape[1]) < lengths[:, None, None, None]
        seen = attend(query, key, value, allowed, scale=config.scale, soft_cap=config.soft_cap)
        return torch.cat([seen, context[:, config.num_global_tokens :]], 1)


class BidirectionalAttention(SelfAttention):
    """Of an encoder."""

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: AttentionKernels) -> None:
        super().__init__(hidden_size, layer, kernels)
        self.content_bias: DisentangledBias | None = None
        if self.config.disentangled is not None:
            self.content_bias = DisentangledBias(self.config, self.config.disentangled)
        self.global_tokens: GlobalTokens | None = None
        if self.config.num_global_tokens:
            self.global_tokens = GlobalTokens(hidden_size, self.config)

    def forward(self, x: Tensor, lengths: Tensor, positions: AttentionPositions) -> Tensor:
        qkv = self.packed(x)
        if self.content_bias is not None:
            bias = self.content_bias(qkv)
            positions = positions._replace(
                bias=bias if positions.bias is None else bias + positions.bias
            )
        context = self.kernels.bidirectional(qkv, self.config, positions, lengths)
        if self.global_tokens is not None:
            context = self.global_tokens(x, context, lengths)
        output: Tensor = self.output(context)
        return output


class CausalAttention(SelfAttention):
    """Of a decoder. State: ``key`` and ``value [batch, kv_heads, capacity, head_size]``."""

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: AttentionKernels) -> None:
        super().__init__(hidden_size, layer, kernels)
        if self.config.disentangled is not None or self.config.num_global_tokens:
            raise ValueError("disentangled attention and global tokens are an encoder's")

    def forward(self, x: Tensor, step: Step, state: State, positions: AttentionPositions) -> Mixed:
        past = KeyValue(state["key"], state["value"]) if state else None
        attended = self.kernels.causal(self.packed(x), self.config, positions, past, step)
        return Mixed(self.output(attended.context), attended.memory._asdict())


class CrossAttention(nn.Module):
    """Of a decoder to the encoded source, whose keys and values are computed once."""

    def __init__(
        self, hidden_size: int, config: AttentionConfig, kernels: AttentionKernels
    ) -> None:
        super().__init__()
        self.config = config
        self.kernels = kernels
        inner_size = config.num_heads * config.head_size
        kv_size = 2 * config.num_kv_heads * config.head_size
        self.query = Linear(hidden_size, inner_size, bias=config.input_bias)
        self.key_value = Linear(hidden_size, kv_size, bias=config.input_bias)
        self.output = Linear(inner_size, hidden_size, bias=config.output_bias)

    def remember(self, encoded: Tensor) -> KeyValue:
        """``encoded [batch, source_length, hidden]`` as this layer's keys and values."""
        key, value = self.key_value(encoded).chunk(2, -1)
        num_heads = self.config.num_kv_heads
        return KeyValue(split_heads(key, num_heads), split_heads(value, num_heads))

    def forward(self, x: Tensor, step: Step, memory: KeyValue) -> Mixed:
        attended = self.kernels.cross(self.query(x), self.config, memory, step)
        state = {"cross_key": attended.memory.key, "cross_value": attended.memory.value}
        return Mixed(self.output(attended.context), state)


class SimplerSimpleRecurrentUnit(nn.Module):
    """SSRU (Kim et al. 2019, section 3.2). State: ``recurrent [batch, hidden]``.

    ``f_t = sigmoid(W_f x_t + b_f)``; ``c_t = f_t * c_{t-1} + (1 - f_t) * W x_t``; the
    output is ``relu(c_t)``.
    """

    def __init__(self, hidden_size: int, _layer: LayerConfig, _kernels: AttentionKernels) -> None:
        super().__init__()
        self.forget = Linear(hidden_size, hidden_size, bias=True)
        self.candidate = Linear(hidden_size, hidden_size, bias=False)

    def forward(
        self, x: Tensor, _step: Step, state: State, _positions: AttentionPositions
    ) -> Mixed:
        forget = torch.sigmoid(self.forget(x))
        update = (1 - forget) * self.candidate(x)
        memory = state["recurrent"] if state else torch.zeros_like(x[:, 0])
        memories = []
        for t in range(x.shape[1]):
            memory = forget[:, t] * memory + update[:, t]
            memories.append(memory)
        return Mixed(torch.stack(memories, 1).relu(), {"recurrent": memory})


DECODER_MIXERS: dict[MixerKind, Callable[[int, LayerConfig, AttentionKernels], nn.Module]] = {
    MixerKind.ATTENTION: CausalAttention,
    MixerKind.SSRU: SimplerSimpleRecurrentUnit,
}
ENCODER_MIXERS: dict[MixerKind, Callable[[int, LayerConfig, AttentionKernels], nn.Module]] = {
    MixerKind.ATTENTION: BidirectionalAttention,
}
