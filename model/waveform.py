"""Embeds waveforms: from samples to the first vectors of a speech encoder (Baevski et al. 2020)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.audio_embedding import MAX_SAMPLE
from model.basics import ACTIVATIONS, Linear, make_norm
from model.config import ModelConfig
from model.embeddings import FirstEmbedding
from model.layers import full_lengths
from model.norm_config import NormConfig
from model.variants import NormKind
from model.waveform_config import (
    ChannelNorm,
    ConvolutionConfig,
    PositionalConvolutionConfig,
    WaveformConfig,
)

MIN_VARIANCE = 1e-7  # added to that of a window's samples
NORM = NormConfig(kind=NormKind.LAYER, epsilon=1e-5)


class Waveforms(NamedTuple):
    """Windows of samples ``[batch, samples]``, int16, right-padded to ``lengths [batch]``."""

    samples: Tensor
    lengths: Tensor

    @classmethod
    def whole(cls, samples: Tensor) -> "Waveforms":
        """Windows without padding."""
        return cls(samples, full_lengths(samples))


def valid(lengths: Tensor, x: Tensor) -> Tensor:
    """``[batch, length, 1]``: 1 where ``x [batch, length, ...]`` is within ``lengths``, else 0."""
    return (torch.arange(x.shape[1]) < lengths[:, None]).to(x.dtype)[:, :, None]


def frames(x: Tensor, layer: ConvolutionConfig) -> Tensor:
    """The inputs of each output of a convolution over ``x [batch, length, channels]``.

    Returns:
        ``[batch, frames, size * channels]``
    """
    # Slices from each input of the first frame to that of the last one.
    ends = [first - layer.size + 1 or None for first in range(layer.size)]
    return torch.cat([x[:, first : end : layer.stride] for first, end in enumerate(ends)], 2)


class FrameConvolution(nn.Module):
    """A convolution over time as a linear map: its weight is ``[size * inputs, outputs]``.

    A layer norm and an activation follow.
    """

    def __init__(self, inputs: int, layer: ConvolutionConfig, config: WaveformConfig) -> None:
        super().__init__()
        self.layer = layer
        self.map = Linear(layer.size * inputs, layer.num_channels, bias=config.bias)
        self.norm: nn.Module = nn.Identity()
        if config.channel_norm == ChannelNorm.LAYER:
            self.norm = make_norm(layer.num_channels, NORM)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, length, inputs]`` to ``[batch, frames, outputs]``."""
        return self.activation(self.norm(self.map(frames(x, self.layer))))


class NormalizedConvolution(nn.Module):
    """The first convolution with a norm of each channel over time, and an activation.

    Wu and He 2018, with a group for each channel. The mean and the variance of a channel follow
    from those of its inputs, so the norm becomes part of the convolution's weights and costs no
    pass over its outputs. A bias would cancel.
    """

    def __init__(self, layer: ConvolutionConfig, config: WaveformConfig) -> None:
        super().__init__()
        self.layer = layer
        self.weight = nn.Parameter(torch.empty(layer.size, layer.num_channels))
        self.norm_weight = nn.Parameter(torch.empty(layer.num_channels))
        self.norm_bias = nn.Parameter(torch.empty(layer.num_channels))
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """``x [batch, samples, 1]``, right-padded to ``lengths``, to ``[batch, frames, outputs]``.

        The norm leaves out padding.
        """
        inputs = frames(x, self.layer)  # [batch, frames, size]
        counts = (lengths - self.layer.size) // self.layer.stride + 1
        # In float64: speech has little power at high frequencies, so that the variance of a channel
        # for them is a small difference of large terms.
        precise, number = inputs.double(), counts.double()[:, None, None]
        mask = valid(counts, precise)
        mean = (precise * mask).sum(1, keepdim=True) / number
        centred = (precise - mean) * mask
        covariance = centred.transpose(1, 2) @ centred / number  # [batch, size, size]
        weight = self.weight.double()
        variance = ((covariance @ weight) * weight).sum(1, keepdim=True)  # [batch, 1, outputs]
        scale = self.norm_weight.double() / (variance + NORM.epsilon).sqrt()
        scaled = (weight * scale).to(x.dtype)  # [batch, size, outputs]
        shift = self.norm_bias - mean.to(x.dtype) @ scaled  # [batch, 1, outputs]
        # A constant input adds the shift within the product.
        ones = torch.ones_like(inputs[:, :, :1])
        product = torch.cat([inputs, ones], 2) @ torch.cat([scaled, shift], 1)
        return self.activation(product)


class PositionalConvolution(nn.Module):
    """``activation(norm(conv(x)))`` with zeros around each row, ``weight [hidden, part, size]``."""

    def __init__(self, hidden_size: int, config: PositionalConvolutionConfig) -> None:
        super().__init__()
        self.config = config
        shape = (hidden_size, hidden_size // config.num_groups, config.size)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, length, hidden]``; an even kernel reads one more vector before than after."""
        config, length = self.config, x.shape[1]
        y = functional.conv1d(
            x.transpose(1, 2),
            self.weight,
            self.bias,
            padding=config.size // 2,
            groups=config.num_groups,
        )
        y = y[:, :, :length].transpose(1, 2)
        if config.norm is not None:
            y = functional.layer_norm(y, y.shape[2:], eps=config.norm.epsilon)
        return y


class WaveformEmbedding(FirstEmbedding):
    """The vectors of a waveform: frames by convolutions, a linear map, convolved positions."""

    def __init__(self, model: ModelConfig, config: WaveformConfig) -> None:
        super().__init__(model)
        self.config = config
        first, *others = config.convolutions
        self.first_convolution: nn.Module
        if config.channel_norm == ChannelNorm.GROUP:
            self.first_convolution = NormalizedConvolution(first, config)
        else:
            self.first_convolution = FrameConvolution(1, first, config)
        inputs = [layer.num_channels for layer in config.convolutions]
        self.convolutions = nn.ModuleList(
            FrameConvolution(*pair, config) for pair in zip(inputs[:-1], others, strict=True)
        )
        self.projection_norm: nn.Module = nn.Identity()
        if config.projection_norm is not None:
            self.projection_norm = make_norm(inputs[-1], config.projection_norm)
        self.frame_projection = Linear(inputs[-1], model.hidden_size, bias=True)
        self.positional = nn.ModuleList(
            PositionalConvolution(model.hidden_size, config.positional)
            for _ in range(config.positional.num_layers)
        )
        self.activation = ACTIVATIONS[config.activation]

    def num_frames(self, lengths: Tensor) -> Tensor:
        """The number of vectors of windows of ``lengths`` samples."""
        return (lengths - self.config.frame_size) // self.config.hop_size + 1

    def look_up(self, inputs: Tensor) -> Tensor:
        """As :meth:`read`, for windows without padding."""
        return self.read(Waveforms.whole(inputs))

    def read(self, waveforms: Waveforms) -> Tensor:
        """The vectors of each window, ``[batch, frames, hidden]``, without positions."""
        x = self.samples(waveforms)
        if isinstance(self.first_convolution, NormalizedConvolution):
            x = self.first_convolution(x, waveforms.lengths)
        else:
            x = self.first_convolution(x)
        for convolution in self.convolutions:
            x = convolution(x)
        projected: Tensor = self.frame_projection(self.projection_norm(x))
        return projected

    def samples(self, waveforms: Waveforms) -> Tensor:
        """``[batch, samples, 1]``, between -1 and 1 or normalized; padding is 0."""
        x = waveforms.samples.to(self.frame_projection.weight.dtype)[:, :, None] / MAX_SAMPLE
        if not self.config.normalize:
            return x
        # Sums of integers are exact.
        integers, number = waveforms.samples.long(), waveforms.lengths.double()[:, None, None]
        mean = integers.sum(1)[:, None, None] / number / MAX_SAMPLE
        power = (integers * integers).sum(1)[:, None, None] / number / MAX_SAMPLE**2
        deviation = (power - mean * mean + MIN_VARIANCE).sqrt()
        normalized = (x - mean.to(x.dtype)) / deviation.to(x.dtype)
        return normalized * valid(waveforms.lengths, x)

    def embed_waveforms(self, waveforms: Waveforms) -> Tensor:
        """Windows to ``[batch, frames, hidden]``, with positions."""
        x = self.read(waveforms)
        mask = valid(self.num_frames(waveforms.lengths), x)
        positions = x
        for convolution in self.positional:
            positions = self.activation(convolution(positions * mask))
        embedded: Tensor = self(x + positions, torch.arange(x.shape[1]), None)
        return embedded
