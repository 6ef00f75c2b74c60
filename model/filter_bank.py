"""Kaldi's features of recordings: the logarithm of mel filter banks (Povey et al. 2011)."""

import math

import torch
from torch import Tensor

from model.audio_embedding import MAX_SAMPLE
from model.spectrogram_config import SpectrogramConfig
from model.waveform import Waveforms

PREEMPHASIS = 0.97  # of the previous sample, which is subtracted
LOWEST_HERTZ = 20.0
MIN_POWER = 2.0**-23  # the epsilon of float32
HERTZ_SCALE, MEL_SCALE = 700.0, 1127.0


class LogMelFilterBank(torch.nn.Module):
    """Windows of samples to ``[batch, frames, mel bins]``, float64.

    Each frame loses its mean, then gets preemphasis, a Hann window and a Fourier transform: one
    matrix product, in float64, because mean and preemphasis remove most of a frame's power. Frames
    that are not complete are 0; silence fills up the first one.
    """

    basis: Tensor
    filters: Tensor

    def __init__(self, config: SpectrogramConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("basis", fourier_basis(config), persistent=False)
        self.register_buffer("filters", mel_filters(config), persistent=False)

    def forward(self, waveforms: Waveforms) -> Tensor:
        config = self.config
        x = waveforms.samples.double() / MAX_SAMPLE
        num_blocks = len(self.basis) // config.hop_size
        num_samples = (config.num_frames + num_blocks - 1) * config.hop_size
        x = torch.nn.functional.pad(x, (0, num_samples - x.shape[1]))
        blocks = x.reshape(x.shape[0], -1, config.hop_size)
        frames = [blocks[:, first : first + config.num_frames] for first in range(num_blocks)]
        real, imaginary = (torch.cat(frames, 2) @ self.basis).chunk(2, -1)
        mel = (real * real + imaginary * imaginary) @ self.filters
        number = (waveforms.lengths - config.frame_size) // config.hop_size + 1
        is_complete = torch.arange(config.num_frames) < number.clamp(min=1)[:, None]
        return mel.clamp(min=MIN_POWER).log() * is_complete[:, :, None]


def fourier_basis(config: SpectrogramConfig) -> Tensor:
    """``[samples, 2 * frequencies]``, float64: cosines, then sines, of a prepared frame.

    Zeros follow, up to a multiple of ``hop_size``.
    """
    size, fft_size = config.frame_size, config.fft_size
    time = torch.arange(size, dtype=torch.float64)
    centre = torch.eye(size, dtype=torch.float64) - 1 / size
    # The sample before the first one is the first one.
    previous = torch.eye(size, dtype=torch.float64).roll(1, 1)
    previous[-1, 0], previous[0, 0] = 0, 1
    emphasize = torch.eye(size, dtype=torch.float64) - PREEMPHASIS * previous
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * time / (size - 1))
    # Whole turns are dropped, for exact angles.
    turns = torch.outer(time, torch.arange(fft_size // 2 + 1, dtype=torch.float64)) % fft_size
    angles = 2 * math.pi * turns / fft_size
    waves = torch.cat([angles.cos(), angles.sin()], 1) * window[:, None]
    basis = centre @ emphasize @ waves
    return torch.nn.functional.pad(basis, (0, 0, 0, -size % config.hop_size))


def mel_filters(config: SpectrogramConfig) -> Tensor:
    """``[frequencies, mel bins]``, float64: triangles of height 1, evenly spaced in mel."""
    lowest, top = (
        MEL_SCALE * math.log1p(hertz / HERTZ_SCALE)
        for hertz in (LOWEST_HERTZ, config.sample_rate / 2)
    )
    edges = torch.linspace(lowest, top, config.num_mel_bins + 2, dtype=torch.float64)
    numbers = torch.arange(config.fft_size // 2 + 1, dtype=torch.float64)
    hertz = numbers * config.sample_rate / config.fft_size
    mels = MEL_SCALE * torch.log1p(hertz / HERTZ_SCALE)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (mels - low) / (middle - low), (high - mels) / (high - middle)
    return torch.minimum(rising, falling).clamp(min=0)
