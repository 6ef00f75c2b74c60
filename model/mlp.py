"""Two linear maps with an activation between them."""

from torch import Tensor, nn

from model.basics import Linear, make_activation
from model.config import FeedForwardConfig


class MLP(nn.Module):
    """``activation(x W1) W2``, or gated: ``(activation(x W1) * x V) W2`` (Shazeer 2020)."""

    def __init__(self, hidden_size: int, config: FeedForwardConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.activation = make_activation(config.activation)
        width = config.inner_size * (2 if config.gated else 1)
        self.input = Linear(hidden_size, width, bias=config.bias)
        self.output = Linear(config.inner_size, hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.input(x)  # [batch, length, inner], twice as wide if gated
        if self.gated:
            gate, up = inner.chunk(2, -1)
            inner = self.activation(gate) * up
        else:
            inner = self.activation(inner)
        output: Tensor = self.output(inner)
        return output
