"""Multi-head latent attention: DeepSeek-V2 (DeepSeek-AI 2024, section 2.1)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear, make_norm
from model.config import AttentionConfig, LatentConfig


class LatentProjection(nn.Module):
    """Queries, keys and values of an attention with :class:`LatentConfig`.

    ``down`` maps to the query or its latent vector, the latent vector of keys and values, and the
    rotated part of keys. ``up`` maps to the plain parts of all heads' keys, then to their values.
    A head has half of its rotated and half of its plain dimensions, then the other halves, which
    keeps rotary pairs ``(i, i + head_size / 2)``. Unused dimensions are 0.
    """

    def __init__(self, hidden_size: int, config: AttentionConfig, latent: LatentConfig) -> None:
        super().__init__()
        self.config, self.latent = config, latent
        if config.num_kv_heads != config.num_heads:
            raise ValueError("latent attention has as many key-value heads as heads")
        query_size = config.num_heads * config.head_size
        self.widths = [latent.query_size or query_size, latent.size, latent.rotated_size]
        self.down = Linear(hidden_size, sum(self.widths), bias=config.input_bias)
        if latent.query_size is not None:
            self.query_norm = make_norm(latent.query_size, latent.norm)
            self.query = Linear(latent.query_size, query_size, bias=False)
        self.norm = make_norm(latent.size, latent.norm)
        head_width = latent.plain_size + latent.value_size
        self.up = Linear(latent.size, config.num_heads * head_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x [batch, length, hidden]`` to packed queries, keys and values."""
        query, vector, rotated = torch.split(self.down(x), self.widths, -1)
        if self.latent.query_size is not None:
            query = self.query(self.query_norm(query))
        heads = self.config.num_heads
        parts = [heads * self.latent.plain_size, heads * self.latent.value_size]
        plain, value = torch.split(self.up(self.norm(vector)), parts, -1)
        room = self.config.head_size - self.latent.rotated_size
        shared = rotated[:, :, None].expand(-1, -1, heads, -1).chunk(2, -1)
        each = self._padded(plain, room).chunk(2, -1)
        key = torch.cat([shared[0], each[0], shared[1], each[1]], -1)
        value = self._padded(value, self.config.head_size)
        return torch.cat([query, key.flatten(2), value.flatten(2)], -1)

    def values_of(self, context: Tensor) -> Tensor:
        """``context [batch, length, heads * head_size]`` without the dimensions that are 0."""
        by_head = context.reshape(*context.shape[:2], self.config.num_heads, -1)
        values: Tensor = by_head[..., : self.latent.value_size].flatten(2)
        return values

    def _padded(self, x: Tensor, size: int) -> Tensor:
        """``x [batch, length, heads * any]`` as ``[batch, length, heads, size]``."""
        by_head = x.reshape(*x.shape[:2], self.config.num_heads, -1)
        missing = size - by_head.shape[-1]
        return functional.pad(by_head, (0, missing)) if missing else by_head
