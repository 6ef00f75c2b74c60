"""Token mixers: self-attention, cross-attention, a recurrent unit and a short convolution.

A decoder's mixer keeps *state* between steps: tensors by name, which one running sequence owns.
An empty state means that there were no earlier tokens.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import (
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    MixerKind,
    ScoreKind,
    ShortConvolutionConfig,
    SpanConfig,
)
from model.disentangled import DisentangledBias
from model.eager import split_heads, split_qkv, update_cache
from model.global_tokens import GlobalTokens
from model.head_norms import make_head_norm, normalize_heads, rotate
from model.kernels import (
    AttentionSignal,
    KeyValue,
    ModelKernels,
    PositionEncodings,
    RotaryTables,
    Step,
)
from model.latent import LatentProjection
from model.mixer_state import MixerOutput, State
from model.position_config import SignalTarget
from model.relative_bias import BiasGate
from model.relative_positions import RelativePositions
from model.scores import SCORES, AdditiveScore
from model.short_convolution import CausalConvolution, EncoderConvolution
from model.span_convolution import SpanConvolution
from model.ssru import SimplerSimpleRecurrentUnit

_Part = TypeVar("_Part", AttentionConfig, FeedForwardConfig, ShortConvolutionConfig, SpanConfig)


def required(part: _Part | None) -> _Part:
    """Returns ``part`` of the configuration of a layer or head, which must be present.

    Raises:
        ValueError: it is None.
    """
    if part is None:
        raise ValueError("the configuration lacks one of its parts")
    return part


class AttentionInputs(NamedTuple):
    """A kernel's inputs: packed queries, keys and values, and position encodings."""

    qkv: Tensor
    positions: PositionEncodings


class SelfAttention(nn.Module):
    """Multi-head or grouped-query (Ainslie et al. 2023) self-attention."""

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: ModelKernels) -> None:
        super().__init__()
        self.config = config = required(layer.attention).with_scale
        self.kernels = kernels
        self.qkv: Linear | LatentProjection
        if config.latent is None:
            packed_heads = config.num_heads + 2 * config.num_kv_heads
            packed_size = packed_heads * config.head_size
            self.qkv = Linear(hidden_size, packed_size, bias=config.input_bias)
            inner_size = config.num_heads * config.head_size
        else:
            self.qkv = LatentProjection(hidden_size, config, config.latent)
            inner_size = config.num_heads * config.latent.value_size
        if config.convolution_size is not None:
            inner_size *= 2
        output_size = hidden_size if layer.bottleneck is None else layer.bottleneck.size
        self.output = Linear(inner_size, output_size, bias=config.output_bias)
        self.gate = None
        if config.has_gate:
            self.gate = Linear(hidden_size, config.num_heads, bias=False)
        self.score = SCORES[config.score](config)
        if config.head_norm is not None:
            self.query_norm = make_head_norm(config, config.head_norm, config.num_heads)
            self.key_norm = make_head_norm(config, config.head_norm, config.num_kv_heads)
        self.sinks = nn.Parameter(torch.empty(config.num_heads)) if config.has_sinks else None
        self.relative: RelativePositions | None = None
        if config.relative is not None:
            self.relative = RelativePositions(config, config.relative)

    def project_qkv(self, x: Tensor, signal: AttentionSignal | None = None) -> Tensor:
        """``x [batch, length, hidden]`` to packed queries, keys and values, as kernels take it."""
        qkv: Tensor = self.qkv(x)
        if signal is not None:
            plain = zip(SignalTarget, split_qkv(qkv, self.config), strict=True)
            moved = split_qkv(self.qkv(x + signal.vectors), self.config)
            parts = zip(plain, moved, strict=True)
            qkv = torch.cat([b if name in signal.targets else a for (name, a), b in parts], -1)
        is_dot = self.config.score in (ScoreKind.SCALED_DOT, ScoreKind.DOT)
        if self.config.head_norm is not None or not is_dot:
            query, key, value = split_qkv(qkv, self.config)
            if self.config.head_norm is not None and not self.config.norm_rotated:
                query = normalize_heads(query, self.query_norm, self.config)
                key = normalize_heads(key, self.key_norm, self.config)
            qkv = torch.cat([self.score.query(query), self.score.key(key), value], -1)
        clip = self.config.clip
        return qkv if clip is None else qkv.clamp(-clip, clip)

    def project_context(self, context: Tensor, x: Tensor) -> Tensor:
        """``context [batch, length, heads * head_size]`` to the output for the input ``x``."""
        if self.gate is not None:
            by_head = context.reshape(*context.shape[:2], self.config.num_heads, -1)
            context = (torch.sigmoid(self.gate(x))[..., None] * by_head).flatten(2)
        if isinstance(self.qkv, LatentProjection):
            context = self.qkv.values_of(context)
        output: Tensor = self.output(context)
        return output

    def add_relative(self, qkv: Tensor, positions: PositionEncodings) -> PositionEncodings:
        """``positions`` with this layer's vectors per distance added (Shaw et al. 2018)."""
        if self.relative is None or positions.distances is None:
            return positions
        query = split_heads(split_qkv(qkv, self.config)[0], self.config.num_heads)
        return positions._replace(
            bias=_sum(positions.bias, self.relative.bias(query, positions.distances)),
            relative_values=self.relative.values(positions.distances),
        )

    def add_scores(
        self, qkv: Tensor, positions: PositionEncodings, past: Tensor | None, step: Step | None
    ) -> AttentionInputs:
        """The kernel's inputs. Scores that are not dot products become a bias.

        The bias reads the cached keys, and the operator that updates the cache in place reads the
        bias, so it runs last.

        Args:
            past: cached keys, ``[batch, kv_heads, capacity, head_size]``.
        """
        if not isinstance(self.score, AdditiveScore):
            return AttentionInputs(qkv, positions)
        query, key, value = split_qkv(qkv, self.config)
        keys = split_heads(key, self.config.num_kv_heads)
        if past is not None and step is not None:
            total = torch.arange(step.max_total_length.item())
            keys = update_cache(past.index_select(2, total), keys, step)
        bias = self.score.bias(split_heads(query, self.config.num_heads), keys)
        qkv = torch.cat([torch.zeros_like(query), key, value], -1)
        return AttentionInputs(qkv, positions._replace(bias=_sum(positions.bias, bias)))


def _sum(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first + second


class BidirectionalAttention(SelfAttention):
    """An encoder's self-attention.

    ``has_unattended``: see :class:`model.config.StackConfig`.
    """

    has_unattended = False

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: ModelKernels) -> None:
        super().__init__(hidden_size, layer, kernels)
        self.content_bias: DisentangledBias | None = None
        if self.config.score != ScoreKind.SCALED_DOT and (
            self.config.disentangled is not None or self.config.num_global_tokens
        ):
            raise ValueError(
                f"disentangled attention and global tokens have no {self.config.score} scores"
            )
        if self.config.norm_rotated:
            raise ValueError("only decoders normalise rotated queries and keys")
        if self.config.relative is not None and self.config.num_global_tokens:
            raise ValueError("global tokens have no relative positions")
        if self.sinks is not None and self.config.num_global_tokens:
            raise ValueError("global tokens have no sinks")
        if self.config.disentangled is not None:
            self.content_bias = DisentangledBias(self.config, self.config.disentangled)
        self.bias_gate: BiasGate | None = None
        if self.config.gates_bias:
            self.bias_gate = BiasGate(self.config.num_heads, self.config.head_size)
        self.convolution: SpanConvolution | None = None
        if self.config.convolution_size is not None:
            if self.config.num_global_tokens:
                raise ValueError("global tokens have no convolution")
            size = self.config.convolution_size
            self.convolution = SpanConvolution(hidden_size, self.config, size)
        self.global_tokens: GlobalTokens | None = None
        if self.config.num_global_tokens:
            self.global_tokens = GlobalTokens(hidden_size, self.config, kernels)

    def forward(self, x: Tensor, lengths: Tensor, positions: PositionEncodings) -> Tensor:
        """``x [batch, length, hidden]``, right-padded to ``lengths [batch]``."""
        qkv = self.project_qkv(x, positions.signal)
        if self.content_bias is not None:
            bias = self.content_bias(qkv, positions.segments)
            positions = positions._replace(bias=_sum(positions.bias, bias))
        if self.bias_gate is not None and positions.bias is not None:
            positions = positions._replace(bias=self.bias_gate(x, positions.bias))
        positions = self.add_relative(qkv, positions)
        query = split_qkv(qkv, self.config)[0]
        qkv, positions = self.add_scores(qkv, positions, None, None)
        context = self.kernels.bidirectional(qkv, self.config, positions, lengths, self.sinks)
        if self.global_tokens is not None:
            context = self.global_tokens(x, context, lengths, positions)
        elif self.has_unattended and self.config.window is not None:
            # As in torch, the context of a token that sees no key is 0.
            sees_keys = torch.arange(x.shape[1]) < lengths[:, None] + self.config.window - 1
            context = context.masked_fill(~sees_keys[:, :, None], 0)
        if self.convolution is not None:
            context = torch.cat([context, self.convolution(x, query, lengths)], -1)
        return self.project_context(context, x)


class CausalAttention(SelfAttention):
    """A decoder's self-attention.

    State: ``key`` and ``value``, each ``[batch, kv_heads, capacity, head_size]``.
    """

    def __init__(self, hidden_size: int, layer: LayerConfig, kernels: ModelKernels) -> None:
        super().__init__(hidden_size, layer, kernels)
        if self.config.disentangled is not None or self.config.num_global_tokens:
            raise ValueError("only encoders support disentangled attention and global tokens")
        if self.config.convolution_size is not None:
            raise ValueError("only encoders have a convolution beside attention")

    def forward(
        self, x: Tensor, step: Step, state: State, positions: PositionEncodings
    ) -> MixerOutput:
        past = KeyValue(state["key"], state["value"]) if state else None
        qkv = self.project_qkv(x, positions.signal)
        if self.config.norm_rotated and positions.rotary is not None:
            qkv = self.normalize_rotated(qkv, positions.rotary, step)
            positions = positions._replace(rotary=None)
        positions = self.add_relative(qkv, positions)
        qkv, positions = self.add_scores(qkv, positions, past and past.key, step)
        context, present = self.kernels.causal(qkv, self.config, positions, past, step, self.sinks)
        return MixerOutput(self.project_context(context, x), present._asdict())

    def normalize_rotated(self, qkv: Tensor, tables: RotaryTables, step: Step) -> Tensor:
        """``qkv`` with queries and keys rotated, then normalized."""
        indices = step.num_cached_tokens[:, None] + torch.arange(qkv.shape[1])
        indices = indices.clamp(max=tables.cos.shape[0] - 1)  # padding may be beyond the tables
        query, key, value = split_qkv(qkv, self.config)
        query = normalize_heads(rotate(query, tables, indices), self.query_norm, self.config)
        key = normalize_heads(rotate(key, tables, indices), self.key_norm, self.config)
        return torch.cat([query, key, value], -1)


class CrossAttention(nn.Module):
    """A decoder's attention to the encoded source; its keys and values are computed once."""

    def __init__(self, hidden_size: int, config: AttentionConfig, kernels: ModelKernels) -> None:
        super().__init__()
        self.config = config = config.with_scale
        self.kernels = kernels
        inner_size = config.num_heads * config.head_size
        kv_size = 2 * config.num_kv_heads * config.head_size
        self.query = Linear(hidden_size, inner_size, bias=config.input_bias)
        self.key_value = Linear(config.source_size or hidden_size, kv_size, bias=config.input_bias)
        self.output = Linear(inner_size, hidden_size, bias=config.output_bias)
        self.score = SCORES[config.score](config)

    def project_source(self, encoded: Tensor) -> KeyValue:
        """This layer's keys and values of ``encoded [batch, source_length, source size]``."""
        key, value = self.key_value(encoded).chunk(2, -1)
        num_heads = self.config.num_kv_heads
        return KeyValue(split_heads(self.score.key(key), num_heads), split_heads(value, num_heads))

    def forward(self, x: Tensor, step: Step, source: KeyValue) -> MixerOutput:
        query, bias = self.score.query(self.query(x)), None
        if isinstance(self.score, AdditiveScore):
            _, max_length = step.source()
            keys = source.key.index_select(2, torch.arange(max_length.item()))
            bias = self.score.bias(split_heads(query, self.config.num_heads), keys)
            query = torch.zeros_like(query)
        context, source = self.kernels.cross(query, self.config, source, step, bias)
        state = {"cross_key": source.key, "cross_value": source.value}
        return MixerOutput(self.output(context), state)


DECODER_MIXERS: dict[MixerKind, Callable[[int, LayerConfig, ModelKernels], nn.Module]] = {
    MixerKind.ATTENTION: CausalAttention,
    MixerKind.SSRU: SimplerSimpleRecurrentUnit,
    MixerKind.SHORT_CONVOLUTION: CausalConvolution,
}
ENCODER_MIXERS: dict[MixerKind, Callable[[int, LayerConfig, ModelKernels], nn.Module]] = {
    MixerKind.ATTENTION: BidirectionalAttention,
    MixerKind.SHORT_CONVOLUTION: EncoderConvolution,
}
