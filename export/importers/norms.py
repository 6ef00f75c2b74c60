"""Norms of decoders, from the configuration fields of their epsilons."""

from export.readers.fields import Fields
from model.config import NormConfig, NormKind


def rms_norm(epsilon: float) -> NormConfig:
    """An RMS norm."""
    return NormConfig(kind=NormKind.RMS, epsilon=epsilon)


def layer_norm(
    config: Fields, name: str = "layer_norm_eps", default: float = 1e-5, *, bias: bool = True
) -> NormConfig:
    """A layer norm whose epsilon is the field ``name`` of ``config``."""
    return NormConfig(kind=NormKind.LAYER, epsilon=config.number(name, default), bias=bias)
