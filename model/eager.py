"""Attention and experts in plain tensor operations: for training, and as a reference."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from model.basics import ACTIVATIONS
from model.config import AttentionConfig, ClampedGateConfig, ExpertsConfig, FeedForwardConfig
from model.kernels import (
    AttentionOutput,
    ExpertWeights,
    KeyValue,
    PositionEncodings,
    RotaryTables,
    Step,
)
from model.recurrent_cells import CellWeights, RecurrentOutput, run_cell
from model.recurrent_config import CellKind
from model.relative_positions import RelativeValues


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """``[batch, length, heads * size]`` to ``[batch, heads, length, size]``."""
    batch, length, size = x.shape
    return x.reshape(batch, length, num_heads, size // num_heads).transpose(1, 2)


def split_qkv(qkv: Tensor, config: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Splits packed queries, keys and values into three tensors ``[batch, length, ...]``."""
    kv_size = config.num_kv_heads * config.head_size
    sizes = [config.num_heads * config.head_size, kv_size, kv_size]
    query, key, value = torch.split(qkv, sizes, -1)
    return query, key, value


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Tensor | None = None,
    relative_values: RelativeValues | None = None,
    sinks: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """``softmax(Q K^T / sqrt(d)) V`` (Vaswani et al. 2017, equation 1).

    Args:
        query: ``[batch, heads, length, size]``
        key, value: ``[batch, kv_heads, key_length, size]``; each serves ``heads / kv_heads``
            consecutive query heads (Ainslie et al. 2023).
        mask: bool, broadcast to ``[batch, 1, length, key_length]``; True where a query sees a key.
        scale: default ``1 / sqrt(size)``.
        soft_cap: bounds the scores (Gemma Team 2024, section 2).
        bias: added to the scores, broadcast to ``[batch, heads, length, key_length]``.
        relative_values: added to the values (Shaw et al. 2018, equation 3).
        sinks: ``[heads]``, scores without values (Xiao et al. 2023, section 3.3).
        dropout: applied to the weights.

    Returns:
        ``[batch, length, heads * size]``
    """
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) if group > 1 else x for x in (key, value))
    scores = query @ key.transpose(2, 3)
    scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        last = sinks[:, None, None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, last], -1).softmax(-1)[..., :-1]
    if dropout is not None:
        weights = dropout(weights)
    context = (weights @ value).transpose(1, 2).flatten(2)
    return context if relative_values is None else context + relative_values.context(weights)


def apply_rotary(x: Tensor, tables: RotaryTables, positions: Tensor) -> Tensor:
    """Rotates the pairs ``(x[i], x[i + size / 2])`` by their position's angles (Su et al. 2021).

    Args:
        x: ``[batch, heads, length, size]``
        tables: cosines and sines of every position.
        positions: ``[batch, length]``
    """
    cos, sin = (table[positions][:, None] for table in tables)  # [batch, 1, length, size / 2]
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def update_cache(past: Tensor, new: Tensor, step: Step) -> Tensor:
    """``past [batch, heads, capacity, size]`` with each row's new tokens after its cached ones."""
    capacity, length = past.shape[2], new.shape[2]
    index = torch.arange(capacity) - step.num_cached_tokens[:, None]  # [batch, capacity]
    is_new = (index >= 0) & (index < step.num_new_tokens[:, None])
    index = index.clamp(0, length - 1)[:, None, :, None].expand(past.shape)
    return torch.where(is_new[:, None, :, None], new.gather(2, index), past)


def clamped_gate(gate: Tensor, value: Tensor, config: ClampedGateConfig) -> Tensor:
    """See :class:`model.config.ClampedGateConfig`."""
    gate, value = gate.clamp(max=config.limit), value.clamp(-config.limit, config.limit)
    return gate * torch.sigmoid(config.slope * gate) * (value + 1)


class EagerKernels:
    """Implements :class:`model.kernels.ModelKernels`."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        config: AttentionConfig,
        bias: Tensor | None = None,
        relative_values: RelativeValues | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """The attention of ``config``; arguments as in :func:`scaled_dot_product_attention`."""
        if bias is not None:  # the cache may be longer than the bias; no query sees the rest
            key, value, mask = (
                key[:, :, : bias.shape[3]],
                value[:, :, : bias.shape[3]],
                mask[..., : bias.shape[3]],
            )
        return scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            scale=config.scale,
            soft_cap=config.soft_cap,
            bias=bias,
            relative_values=relative_values,
            sinks=sinks,
            dropout=self.drop_weights,
        )

    def drop_weights(self, weights: Tensor) -> Tensor:
        """The attention weights; training overrides it to drop some of them."""
        return weights

    def bidirectional(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        positions: PositionEncodings,
        lengths: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        indices = torch.arange(qkv.shape[1])[None]  # [1, length]
        query, key, value = self._heads(qkv, config, positions, indices)
        mask = indices < lengths[:, None, None, None]  # [batch, 1, 1, length]
        if config.is_causal:
            mask = mask & (indices <= indices.T)
        if config.window is not None:
            in_window = (indices.T - indices).abs() < config.window  # [length, length]
            num_global = positions.limit_global(config.num_global_tokens)
            mask = mask & (in_window | (indices < num_global[:, None, None, None]))
        return self.attend(
            query, key, value, mask, config, positions.bias, positions.relative_values, sinks
        )

    def causal(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        positions: PositionEncodings,
        past: KeyValue | None,
        step: Step,
        sinks: Tensor | None = None,
    ) -> AttentionOutput:
        indices = step.num_cached_tokens[:, None] + torch.arange(qkv.shape[1])  # [batch, length]
        query, key, value = self._heads(qkv, config, positions, indices)
        if past is not None:
            key, value = update_cache(past.key, key, step), update_cache(past.value, value, step)
        distances = indices[:, None, :, None] - torch.arange(key.shape[2])
        mask = distances >= 0
        if config.window is not None:
            mask &= distances < config.window
        context = self.attend(
            query, key, value, mask, config, positions.bias, positions.relative_values, sinks
        )
        return AttentionOutput(context, KeyValue(key, value))

    def cross(
        self,
        query: Tensor,
        config: AttentionConfig,
        source: KeyValue,
        step: Step,
        bias: Tensor | None = None,
    ) -> AttentionOutput:
        lengths, _ = step.source()
        mask = torch.arange(source.key.shape[2]) < lengths[:, None, None, None]
        context = self.attend(split_heads(query, config.num_heads), *source, mask, config, bias)
        return AttentionOutput(context, source)

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        weights: ExpertWeights,
        feed_forward: FeedForwardConfig,
        config: ExpertsConfig,
    ) -> Tensor:
        top_weights, top_experts = scores.softmax(-1).topk(config.active, -1)
        if config.normalized:
            top_weights = top_weights / top_weights.sum(-1, keepdim=True)
        # [batch, length, experts], zero but for the top k
        expert_weights = torch.zeros_like(scores).scatter(-1, top_experts, top_weights)
        # Every expert runs, even with weight zero: this is the reference implementation.
        inner = torch.einsum("bld,eid->blei", x, weights.input)
        if weights.input_bias is not None:
            inner = inner + weights.input_bias
        activation = ACTIVATIONS[feed_forward.activation]
        if config.clamped_gate is not None:
            inner = clamped_gate(inner[..., 0::2], inner[..., 1::2], config.clamped_gate)
        elif feed_forward.gated:
            inner = activation(inner[..., 0::2]) * inner[..., 1::2]
        else:
            inner = activation(inner)
        outputs = torch.einsum("blei,edi->bled", inner, weights.output)
        if weights.output_bias is not None:
            outputs = outputs + weights.output_bias
        return (outputs * expert_weights[..., None]).sum(2)

    def recurrent(
        self, x: Tensor, lengths: Tensor, weights: CellWeights, kind: CellKind, *, reverse: bool
    ) -> RecurrentOutput:
        return run_cell(x, lengths, weights, kind, reverse=reverse)

    @staticmethod
    def _heads(
        qkv: Tensor, config: AttentionConfig, positions: PositionEncodings, indices: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = split_qkv(qkv, config)
        query = split_heads(query, config.num_heads)
        key = split_heads(key, config.num_kv_heads)
        if positions.rotary is not None:
            query = apply_rotary(query, positions.rotary, indices)
            key = apply_rotary(key, positions.rotary, indices)
        return query, key, split_heads(value, config.num_kv_heads)
