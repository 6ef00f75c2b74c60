"""The configuration of encoders that read speech as a waveform. Imports no torch."""

import math
from enum import StrEnum

from model.norm_config import NormConfig
from model.position_config import ConfigStruct, PositionConfig, PositionKind
from model.variants import Activation


class ChannelNorm(StrEnum):
    """What the convolutions of a waveform normalize."""

    GROUP = "group"  # each channel of the first convolution, over time: Baevski et al. 2020
    LAYER = "layer"  # the channels of each frame, after each convolution


class ConvolutionConfig(ConfigStruct, frozen=True, kw_only=True):
    """One convolution over time, without padding.

    Attributes:
        num_channels: of its output.
        size: inputs per output frame.
        stride: inputs from one output frame to the next.
    """

    num_channels: int
    size: int
    stride: int


class PositionalConvolutionConfig(ConfigStruct, frozen=True, kw_only=True):
    """Relative positions by convolutions over the vectors (Mohamed et al. 2019).

    Attributes:
        size: vectors per output, around it.
        num_groups: groups of channels that are convolved separately.
        num_layers: convolutions, one after the other.
        norm: after each convolution, without weights; None: none.
    """

    size: int
    num_groups: int
    num_layers: int = 1
    norm: NormConfig | None = None


class WaveformConfig(ConfigStruct, frozen=True, kw_only=True):
    """The input of a speech encoder (Baevski et al. 2020, section 2).

    Convolutions turn samples into frames, a linear map turns frames into vectors, and further
    convolutions add positions.

    Attributes:
        sample_rate: samples per second.
        num_samples: the most samples of a window.
        normalize: whether the samples of a window get mean 0 and variance 1.
        bias: whether the convolutions have a bias. With ``GROUP``, that of the first one cancels.
        activation: after each convolution.
        projection_norm: of frames, before the linear map; None: none.
    """

    sample_rate: int = 16_000
    num_samples: int = 480_000
    normalize: bool
    convolutions: tuple[ConvolutionConfig, ...]
    channel_norm: ChannelNorm
    bias: bool
    activation: Activation
    projection_norm: NormConfig | None
    positional: PositionalConvolutionConfig

    @property
    def hop_size(self) -> int:
        """Samples from one frame to the next."""
        return math.prod(layer.stride for layer in self.convolutions)

    @property
    def frame_size(self) -> int:
        """Samples that a frame depends on: the fewest of a window."""
        size, hop = 1, 1
        for layer in self.convolutions:
            size, hop = size + (layer.size - 1) * hop, hop * layer.stride
        return size

    @property
    def num_tokens(self) -> int:
        """The model's vectors for a window of ``num_samples``."""
        return (self.num_samples - self.frame_size) // self.hop_size + 1

    @property
    def position(self) -> PositionConfig:
        """No further positions."""
        return PositionConfig(kind=PositionKind.NONE, max_positions=self.num_tokens)
