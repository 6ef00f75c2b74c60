"""Residual connections around sub-layers, by the position of the norm."""

from collections.abc import Callable

from torch import Tensor, nn

from model.basics import make_norm
from model.config import NormConfig, NormOrder

# Attention, a recurrent unit or a feed-forward: [batch, length, hidden] to the same shape.
Sublayer = Callable[[Tensor], Tensor]


class SandwichNorm(nn.Module):
    """Two norms around a sub-layer: ``before`` its input and ``after`` its output."""

    def __init__(self, size: int, config: NormConfig) -> None:
        super().__init__()
        self.before = make_norm(size, config)
        self.after = make_norm(size, config)


def post_norm(x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
    """``norm(x + sublayer(x))`` (Vaswani et al. 2017)."""
    h: Tensor = norm(x + sublayer(x))
    return h


def pre_norm(x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
    """``x + sublayer(norm(x))`` (Xiong et al. 2020)."""
    return x + sublayer(norm(x))


def sandwich_norm(x: Tensor, sublayer: Sublayer, norm: SandwichNorm) -> Tensor:
    """``x + norm.after(sublayer(norm.before(x)))`` (Ding et al. 2021, section 2.3)."""
    h: Tensor = x + norm.after(sublayer(norm.before(x)))
    return h


def res_post_norm(x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
    """``x + norm(sublayer(x))`` (Liu et al. 2021, Swin Transformer V2, section 3.2)."""
    h: Tensor = x + norm(sublayer(x))
    return h


# The residual connection around a sub-layer, by the position of the norm.
RESIDUALS: dict[NormOrder, Callable[..., Tensor]] = {
    NormOrder.POST: post_norm,
    NormOrder.PRE: pre_norm,
    NormOrder.SANDWICH: sandwich_norm,
    NormOrder.RES_POST: res_post_norm,
}
