"""A window that looks both ways, in blocks: time and memory grow with the length, not its square.

The queries of a block of ``window - 1`` tokens see nothing outside their own block and the two
beside it (Beltagy et al. 2020, section 3.1), so each block is an attention of its own, over
three blocks of keys. docs/decisions/0021-attention-shapes.md has what was measured.
"""

import torch
from torch import Tensor, onnx
from torch.nn import functional

from model.config import AttentionConfig
from model.eager import rotate, split_heads, split_qkv
from model.kernels import AttentionPositions

# So low that nothing is left of a score, and a number in fp16 as well.
LOWEST = -30_000.0


def attend_in_blocks(
    qkv: Tensor,
    config: AttentionConfig,
    positions: AttentionPositions,
    lengths: Tensor,
    window: int,
) -> Tensor:
    """As :meth:`model.kernels.AttentionKernels.bidirectional`, with ONNX Runtime's operators."""
    num_global = config.num_global_tokens
    size = max(window - 1, 1)  # of a block
    if num_global > size:
        raise ValueError(f"{num_global} global tokens are more than a block of {size}")
    batch, length, _ = qkv.shape
    query, key, value = split_qkv(qkv, config)
    if positions.rotary is not None:
        places = torch.arange(length)[None]
        query, key = (
            rotate(split_heads(x, heads), positions.rotary, places).transpose(1, 2).flatten(2)
            for x, heads in ((query, config.num_heads), (key, config.num_kv_heads))
        )
    # At least one token of padding: a tensor without rows is no example for the exporter.
    num_blocks = length // size + 1
    padding = num_blocks * size - length
    queries = functional.pad(query, (0, 0, 0, padding)).reshape(batch * num_blocks, size, -1)
    keys, values = (
        _beside(_grouped(x, config), num_blocks, size, padding, num_global) for x in (key, value)
    )
    first = torch.arange(num_blocks)[:, None] * size
    query_places = (first + torch.arange(size))[:, :, None]  # [blocks, size, 1]
    key_places = (first + torch.arange(-size, 2 * size))[:, None]  # [blocks, 1, 3 * size]
    near = (query_places - key_places).abs() < window
    # Global tokens stand behind each block's own keys, once.
    valid = (key_places >= num_global) & (key_places < lengths[:, None, None, None])
    bias = torch.where(near & valid, 0.0, LOWEST)  # [batch, blocks, size, 3 * size]
    if num_global:
        is_valid = torch.arange(num_global) < lengths[:, None, None, None]
        more = torch.where(is_valid, 0.0, LOWEST).expand(-1, num_blocks, size, -1)
        bias = torch.cat([bias, more], 3)
    bias = bias.reshape(batch * num_blocks, 1, size, 3 * size + num_global)
    context = _multi_head_attention(queries, keys, values, bias, config)
    return context.reshape(batch, num_blocks * size, -1)[:, :length]


def _grouped(x: Tensor, config: AttentionConfig) -> Tensor:
    """Keys or values, once for every query head: ``[batch, length, heads * head_size]``."""
    group = config.num_heads // config.num_kv_heads
    if group == 1:
        return x
    heads = x.reshape(*x.shape[:2], config.num_kv_heads, config.head_size)
    return heads.repeat_interleave(group, 2).flatten(2)


def _beside(x: Tensor, num_blocks: int, size: int, padding: int, num_global: int) -> Tensor:
    """Each block with the one before, the one after, and the first ``num_global`` tokens.

    ``[batch, length, ...]`` to ``[batch * blocks, 3 * size + num_global, ...]``
    """
    blocks = functional.pad(x, (0, 0, size, padding + size))
    blocks = blocks.reshape(x.shape[0], num_blocks + 2, size, x.shape[2])
    parts = [blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]]
    if num_global:
        parts.append(blocks[:, 1:2, :num_global].expand(-1, num_blocks, -1, -1))
    return torch.cat(parts, 2).flatten(0, 1)


def _multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, config: AttentionConfig
) -> Tensor:
    if config.soft_cap is not None:
        raise ValueError("a window that looks both ways has no soft_cap")
    scale = {} if config.scale is None else {"scale": config.scale}
    return onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (query, key, value, None, None, bias),
        attrs={"num_heads": config.num_heads, **scale},
        dtype=query.dtype,
        shape=query.shape,
        version=1,
    )
