"""The configuration of short convolutions. Imports no torch."""

from model.position_config import ConfigStruct


class ShortConvolutionConfig(ConfigStruct, frozen=True, kw_only=True):
    """A gated convolution in the place of attention (:mod:`model.short_convolution`).

    Attributes:
        size: the number of tokens that it reads: a token and those before it.
        bias: whether its linear maps and its kernel have biases.
    """

    size: int
    bias: bool = False
