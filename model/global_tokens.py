"""Full attention of a text's first tokens, beside the windows of the others."""

import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear
from model.config import AttentionConfig
from model.eager import split_heads
from model.kernels import KeyValue, ModelKernels, PositionEncodings, Step


class GlobalTokens(nn.Module):
    """Full attention of a text's first tokens (Beltagy et al. 2020, section 3.1).

    It is cross-attention to the text, as of one token with the heads of all global tokens. So no
    other token's scores are computed, and padding changes no result.
    """

    def __init__(self, hidden_size: int, config: AttentionConfig, kernels: ModelKernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.num_tokens, self.num_heads = config.num_global_tokens, config.num_heads
        self.num_kv_heads, self.head_size = config.num_kv_heads, config.head_size
        # A key head serves consecutive query heads: one query head of every global token.
        self.config = structs.replace(
            config, num_heads=self.num_heads * self.num_tokens, window=None, num_global_tokens=0
        )
        kv_size = 2 * config.num_kv_heads * config.head_size
        self.query = Linear(
            hidden_size, config.num_heads * config.head_size, bias=config.input_bias
        )
        self.key_value = Linear(hidden_size, kv_size, bias=config.input_bias)

    def forward(
        self, x: Tensor, context: Tensor, lengths: Tensor, positions: PositionEncodings
    ) -> Tensor:
        """Replaces the global tokens' vectors in ``context [batch, length, heads * head_size]``."""
        number, length = self.num_tokens, x.shape[1]
        first = functional.pad(x, (0, 0, 0, number))[:, :number]  # a text may be shorter
        queries = split_heads(self.query(first), self.num_heads)  # [batch, heads, number, size]
        key, value = self.key_value(x).chunk(2, -1)
        source = KeyValue(*(split_heads(part, self.num_kv_heads) for part in (key, value)))
        total = torch.scalar_tensor(length, dtype=torch.int32)
        step = Step(lengths, lengths, total, source_lengths=lengths, max_source_length=total)
        query = queries.reshape(x.shape[0], 1, self.num_heads * number * self.head_size)
        output = self.kernels.cross(query, self.config, source, step).context
        heads = output.reshape(x.shape[0], self.num_heads, number, self.head_size)
        # [batch, length, heads * size], zeros after the first tokens
        global_context = functional.pad(heads.transpose(1, 2).flatten(2), (0, 0, 0, length))
        num_global = positions.limit_global(number)[:, None, None]
        is_global = torch.arange(length)[None, :, None] < num_global
        return torch.where(is_global, global_context[:, :length], context)
