"""Bidirectional sliding-window attention in blocks: linear, not quadratic, in the length.

The queries of a block of ``window - 1`` tokens see only their own block and its two neighbours
(Beltagy et al. 2020, section 3.1), so each block is a separate attention over three blocks of keys.
Measurements: docs/decisions/0021-attention-shapes.md.
"""

import torch
from msgspec import structs
from torch import Tensor, onnx
from torch.nn import functional

from model.config import AttentionConfig
from model.eager import apply_rotary, split_heads, split_qkv
from model.kernels import PositionEncodings

# Added to masked scores: fp16 can represent it, and the softmax weight becomes zero.
MASKED = -30_000.0
SINK_DIMENSIONS = 8  # of a head beside its own: operators take sizes of such multiples


def blocked_window_attention(
    qkv: Tensor,
    config: AttentionConfig,
    positions: PositionEncodings,
    lengths: Tensor,
    window: int,
    sinks: Tensor | None = None,
) -> Tensor:
    """Implements :meth:`model.kernels.ModelKernels.bidirectional` with ONNX Runtime's operators.

    Raises:
        ValueError: there are more global tokens than a block holds.
    """
    num_global = config.num_global_tokens
    block_size = max(window - 1, 1)
    if num_global > block_size:
        raise ValueError(f"{num_global} global tokens do not fit into a block of {block_size}")
    batch, length, _ = qkv.shape
    query, key, value = split_qkv(qkv, config)
    if positions.rotary is not None:
        indices = torch.arange(length)[None]
        query, key = (
            apply_rotary(split_heads(x, heads), positions.rotary, indices)
            .transpose(1, 2)
            .flatten(2)
            for x, heads in ((query, config.num_heads), (key, config.num_kv_heads))
        )
    # At least one padding token: the exporter cannot trace a tensor without rows.
    num_blocks = length // block_size + 1
    padding = num_blocks * block_size - length
    queries = functional.pad(query, (0, 0, 0, padding)).reshape(batch * num_blocks, block_size, -1)
    keys, values = (
        _neighbour_blocks(_repeat_kv(x, config), num_blocks, block_size, padding, num_global)
        for x in (key, value)
    )
    first = torch.arange(num_blocks)[:, None] * block_size
    query_indices = (first + torch.arange(block_size))[:, :, None]  # [blocks, size, 1]
    # key_indices has the shape [blocks, 1, 3 * size].
    key_indices = (first + torch.arange(-block_size, 2 * block_size))[:, None]
    in_window = (query_indices - key_indices).abs() < window
    # Global tokens come after each block's own keys, and must not occur twice.
    first_local = positions.limit_global(num_global)[:, None, None, None]
    row_lengths = lengths[:, None, None, None]
    valid = (key_indices >= first_local) & (key_indices < row_lengths)
    bias = torch.where(in_window & valid, 0.0, MASKED)  # [batch, blocks, size, 3 * size]
    if num_global:
        indices = torch.arange(num_global)
        is_valid = (indices < first_local) & (indices < row_lengths)
        global_bias = torch.where(is_valid, 0.0, MASKED).expand(-1, num_blocks, block_size, -1)
        bias = torch.cat([bias, global_bias], 3)
    bias = bias.reshape(batch * num_blocks, 1, block_size, 3 * block_size + num_global)
    if sinks is not None:
        context = _with_sinks(queries, keys, values, bias, config, sinks)
    else:
        context = _multi_head_attention(queries, keys, values, bias, config)
    return context.reshape(batch, num_blocks * block_size, -1)[:, :length]


def _repeat_kv(x: Tensor, config: AttentionConfig) -> Tensor:
    """Keys or values repeated per query head: ``[batch, length, heads * head_size]``."""
    group = config.num_heads // config.num_kv_heads
    if group == 1:
        return x
    heads = x.reshape(*x.shape[:2], config.num_kv_heads, config.head_size)
    return heads.repeat_interleave(group, 2).flatten(2)


def _neighbour_blocks(
    x: Tensor, num_blocks: int, size: int, padding: int, num_global: int
) -> Tensor:
    """Each block with its two neighbours, followed by the first ``num_global`` tokens.

    ``[batch, length, ...]`` to ``[batch * blocks, 3 * size + num_global, ...]``
    """
    blocks = functional.pad(x, (0, 0, size, padding + size))
    blocks = blocks.reshape(x.shape[0], num_blocks + 2, size, x.shape[2])
    parts = [blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]]
    if num_global:
        parts.append(blocks[:, 1:2, :num_global].expand(-1, num_blocks, -1, -1))
    return torch.cat(parts, 2).flatten(0, 1)


def _with_sinks(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    config: AttentionConfig,
    sinks: Tensor,
) -> Tensor:
    """Attention with a last key whose scores are ``sinks [heads]`` and whose value is 0.

    Queries are 1 in a further dimension, and only this key is not 0 there: the operator has no
    sinks, and a bias of its own for each head would be ``heads`` times as large.
    """
    scale = config.head_size**-0.5 if config.scale is None else config.scale
    rest = (0, SINK_DIMENSIONS - 1)
    heads = queries.reshape(*queries.shape[:2], config.num_heads, -1)
    queries = functional.pad(functional.pad(heads, (0, 1), value=1.0), rest).flatten(2)
    heads = keys.reshape(*keys.shape[:2], config.num_heads, -1)
    heads = functional.pad(heads, (0, SINK_DIMENSIONS))
    sink = functional.pad(sinks[:, None] / scale, (config.head_size, SINK_DIMENSIONS - 1))
    last = sink.expand(heads.shape[0], 1, -1, -1)
    keys = torch.cat([heads, last], 1).flatten(2)
    values, bias = functional.pad(values, (0, 0, 0, 1)), functional.pad(bias, (0, 1))
    return _multi_head_attention(queries, keys, values, bias, structs.replace(config, scale=scale))


def _multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, config: AttentionConfig
) -> Tensor:
    if config.soft_cap is not None:
        return _capped_attention(query, key, value, bias, config)
    scale = {} if config.scale is None else {"scale": config.scale}
    return onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (query, key, value, None, None, bias),
        attrs={"num_heads": config.num_heads, **scale},
        dtype=query.dtype,
        shape=(*query.shape[:2], value.shape[2]),
        version=1,
    )


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, config: AttentionConfig
) -> Tensor:
    """In plain operators: ``MultiHeadAttention`` has no ``soft_cap``."""
    query, key, value = (split_heads(x, config.num_heads) for x in (query, key, value))
    scale = config.head_size**-0.5 if config.scale is None else config.scale
    cap = config.soft_cap or 1.0
    scores = cap * torch.tanh(query @ key.transpose(2, 3) * (scale / cap))
    return ((scores + bias).softmax(-1) @ value).transpose(1, 2).flatten(2)
