"""Span-based dynamic convolution beside attention: ConvBERT (Jiang et al. 2020)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear
from model.config import AttentionConfig


def neighbours(x: Tensor, size: int) -> list[Tensor]:
    """``x [batch, length, ...]`` moved by ``-(size // 2)`` to ``size // 2`` tokens.

    Item ``k`` has the token ``k - size // 2`` places after each token; zeros are beyond the ends.
    """
    length, half = x.shape[1], size // 2
    padded = functional.pad(x, (0, 0, half, half))
    return [padded[:, index : index + length] for index in range(size)]


class SpanConvolution(nn.Module):
    """A kernel for each token and head, from the token's query and its neighbours (section 3.2).

    The output has as many heads as the attention, of the same size.
    """

    def __init__(self, hidden_size: int, config: AttentionConfig, size: int) -> None:
        super().__init__()
        if size % 2 == 0:
            raise ValueError(f"a kernel of {size} tokens has no middle")
        self.size, self.num_heads = size, config.num_heads
        inner_size = config.num_heads * config.head_size
        self.depthwise_weight = nn.Parameter(torch.empty(size, hidden_size))
        self.span = Linear(hidden_size, inner_size, bias=True)
        self.kernel = Linear(inner_size, config.num_heads * size, bias=True)
        self.value = Linear(hidden_size, inner_size, bias=True)

    def forward(self, x: Tensor, query: Tensor, lengths: Tensor) -> Tensor:
        """``x [batch, length, hidden]``, right-padded to ``lengths``, to ``[..., heads * size]``.

        Args:
            query: ``[batch, length, heads * head_size]``
        """
        is_padding = (torch.arange(x.shape[1]) >= lengths[:, None])[:, :, None]
        around = neighbours(x.masked_fill(is_padding, 0.0), self.size)
        weights = self.depthwise_weight.chunk(self.size)
        spans = sum(moved * weight for moved, weight in zip(around, weights, strict=True))
        scores = self.kernel(self.span(spans) * query)
        # [batch, length, heads, size], a softmax over the kernel's tokens
        kernels = self._heads(scores).softmax(-1).chunk(self.size, -1)
        values = neighbours(self.value(x).masked_fill(is_padding, 0.0), self.size)
        pairs = zip(map(self._heads, values), kernels, strict=True)
        first, *others = (heads * kernel for heads, kernel in pairs)
        return sum(others, first).flatten(2)

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.num_heads, -1)
