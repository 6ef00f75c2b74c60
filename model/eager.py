"""Attention in plain tensor operations: the reference, and what training uses."""

import math

import torch
from torch import Tensor

from model.basics import ACTIVATIONS
from model.config import AttentionConfig, ExpertsConfig, FeedForwardConfig
from model.kernels import Attended, AttentionPositions, ExpertWeights, KeyValue, RotaryTables, Step


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """``[batch, length, heads * size]`` to ``[batch, heads, length, size]``."""
    batch, length, size = x.shape
    return x.reshape(batch, length, num_heads, size // num_heads).transpose(1, 2)


def split_qkv(qkv: Tensor, config: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Packed queries, keys and values, to three tensors of ``[batch, length, ...]``."""
    kv_size = config.num_kv_heads * config.head_size
    sizes = [config.num_heads * config.head_size, kv_size, kv_size]
    query, key, value = torch.split(qkv, sizes, -1)
    return query, key, value


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Scaled dot-product attention, ``softmax(Q K^T / sqrt(d)) V`` (Vaswani et al. 2017, eq. 1).

    Args:
        query: ``[batch, heads, length, size]``
        key, value: ``[batch, kv_heads, key_length, size]``; each serves ``heads / kv_heads``
            consecutive query heads (Ainslie et al. 2023).
        allowed: bool, broadcast to ``[batch, 1, length, key_length]``.
        scale: in place of ``1 / sqrt(size)``.
        soft_cap: bounds the scores (Gemma Team 2024, section 2).
        bias: added to the scores, broadcast to ``[batch, heads, length, key_length]``.

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
    weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2)


def rotate(x: Tensor, tables: RotaryTables, positions: Tensor) -> Tensor:
    """Turns the pairs ``(x[i], x[i + size / 2])`` by their position's angles (Su et al. 2021).

    Args:
        x: ``[batch, heads, length, size]``
        tables: of every position
        positions: ``[batch, length]``
    """
    cos, sin = (table[positions][:, None] for table in tables)  # [batch, 1, length, size / 2]
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def write(past: Tensor, new: Tensor, step: Step) -> Tensor:
    """``past [batch, heads, capacity, size]`` with each row's valid new tokens after its cached."""
    capacity, length = past.shape[2], new.shape[2]
    index = torch.arange(capacity) - step.num_cached_tokens[:, None]  # [batch, capacity]
    is_new = (index >= 0) & (index < step.num_new_tokens[:, None])
    index = index.clamp(0, length - 1)[:, None, :, None].expand(past.shape)
    return torch.where(is_new[:, None, :, None], new.gather(2, index), past)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor,
    config: AttentionConfig,
    bias: Tensor | None = None,
) -> Tensor:
    if bias is not None:  # nothing behind the keys that it knows is allowed
        key, value, allowed = (
            key[:, :, : bias.shape[3]],
            value[:, :, : bias.shape[3]],
            allowed[..., : bias.shape[3]],
        )
    return attend(
        query, key, value, allowed, scale=config.scale, soft_cap=config.soft_cap, bias=bias
    )


class EagerKernels:
    """Implements :class:`model.kernels.AttentionKernels`."""

    def bidirectional(
        self, qkv: Tensor, config: AttentionConfig, positions: AttentionPositions, lengths: Tensor
    ) -> Tensor:
        places = torch.arange(qkv.shape[1])[None]
        query, key, value = self._heads(qkv, config, positions, places)
        allowed = places < lengths[:, None, None, None]  # [batch, 1, 1, length]
        if config.window is not None:
            near = (places.T - places).abs() < config.window
            allowed = allowed & (near | (places < config.num_global_tokens))
        return _attend(query, key, value, allowed, config, positions.bias)

    def causal(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        positions: AttentionPositions,
        past: KeyValue | None,
        step: Step,
    ) -> Attended:
        places = step.num_cached_tokens[:, None] + torch.arange(qkv.shape[1])
        query, key, value = self._heads(qkv, config, positions, places)
        if past is not None:
            key, value = write(past.key, key, step), write(past.value, value, step)
        distances = places[:, None, :, None] - torch.arange(key.shape[2])
        allowed = distances >= 0
        if config.window is not None:
            allowed &= distances < config.window
        context = _attend(query, key, value, allowed, config, positions.bias)
        return Attended(context, KeyValue(key, value))

    def cross(
        self, query: Tensor, config: AttentionConfig, memory: KeyValue, step: Step
    ) -> Attended:
        lengths, _ = step.source()
        allowed = torch.arange(memory.key.shape[2]) < lengths[:, None, None, None]
        context = _attend(split_heads(query, config.num_heads), *memory, allowed, config)
        return Attended(context, memory)

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        weights: ExpertWeights,
        feed_forward: FeedForwardConfig,
        config: ExpertsConfig,
    ) -> Tensor:
        best, chosen = scores.softmax(-1).topk(config.active, -1)
        if config.normalized:
            best = best / best.sum(-1, keepdim=True)
        shares = torch.zeros_like(scores).scatter(-1, chosen, best)  # [batch, length, experts]
        # All experts, whatever their share: this is the reference.
        inner = torch.einsum("bld,eid->blei", x, weights.input)
        if weights.input_bias is not None:
            inner = inner + weights.input_bias
        activation = ACTIVATIONS[feed_forward.activation]
        if feed_forward.gated:
            inner = activation(inner[..., 0::2]) * inner[..., 1::2]
        else:
            inner = activation(inner)
        outputs = torch.einsum("blei,edi->bled", inner, weights.output)
        if weights.output_bias is not None:
            outputs = outputs + weights.output_bias
        return (outputs * shares[..., None]).sum(2)

    @staticmethod
    def _heads(
        qkv: Tensor, config: AttentionConfig, positions: AttentionPositions, places: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = split_qkv(qkv, config)
        query = split_heads(query, config.num_heads)
        key = split_heads(key, config.num_kv_heads)
        if positions.rotary is not None:
            query = rotate(query, positions.rotary, places)
            key = rotate(key, positions.rotary, places)
        return query, key, split_heads(value, config.num_kv_heads)
