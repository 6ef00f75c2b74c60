"""Embeds recordings: from samples to the first vectors of a speech encoder."""

import math

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional

from model.audio_config import AudioConfig
from model.basics import Linear
from model.config import EmbeddingConfig, ModelConfig
from model.embeddings import FirstEmbedding

MAX_SAMPLE = 1 << 15  # samples are int16
MIN_POWER = 1e-10
RANGE = 8.0  # the log10 spectrogram is clamped to this far below a window's maximum
LINEAR_HERTZ = 200.0 / 3  # Hertz per mel below LOG_START
LOG_START = 1000.0
LOG_STEP = math.log(6.4) / 27  # above LOG_START: step of ln(frequency) per mel


class LogMelSpectrogram(torch.nn.Module):
    """``[batch, samples]`` int16 to ``[batch, frames, mel bins]``, as in Whisper.

    Radford et al. 2022, section 2.2. Discrete Fourier transforms of Hann windows are matrix
    products, so that ONNX needs no operator for them.
    """

    basis: Tensor
    filters: Tensor

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("basis", fourier_basis(config), persistent=False)
        self.register_buffer("filters", mel_filters(config), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        config = self.config
        x = samples.to(self.basis.dtype) / MAX_SAMPLE
        # Frames are centred; the window is reflected beyond its ends.
        half = config.fft_size // 2
        before, after = x[:, 1 : half + 1].flip(1), x[:, -half - 1 : -1].flip(1)
        num_blocks = -(-config.fft_size // config.hop_size)
        size = (config.num_frames + num_blocks - 1) * config.hop_size
        x = torch.cat([before, x, after], 1)
        x = functional.pad(x, (0, max(0, size - x.shape[1])))[:, :size]
        blocks = x.reshape(x.shape[0], -1, config.hop_size)
        frames = [blocks[:, first : first + config.num_frames] for first in range(num_blocks)]
        real, imaginary = (torch.cat(frames, 2) @ self.basis).chunk(2, -1)
        mel = (real * real + imaginary * imaginary) @ self.filters
        logarithm = mel.clamp(min=MIN_POWER).log10()
        lowest = logarithm.amax((1, 2), keepdim=True) - RANGE
        return (torch.maximum(logarithm, lowest) + 4.0) / 4.0


class AudioEmbedding(FirstEmbedding):
    """Vectors of a recording: its spectrogram, two convolutions with GELU, and positions.

    A convolution is a linear map of 3 neighbouring frames; its weight is ``[3 * inputs, outputs]``.
    """

    def __init__(self, model: ModelConfig, config: AudioConfig) -> None:
        super().__init__(_input_config(model, config))
        self.spectrogram = LogMelSpectrogram(config)
        self.first_convolution = Linear(3 * config.num_mel_bins, model.hidden_size, bias=True)
        self.second_convolution = Linear(3 * model.hidden_size, model.hidden_size, bias=True)

    def look_up(self, inputs: Tensor) -> Tensor:
        """Samples ``[batch, samples]``, int16, up to a window, to ``[batch, tokens, size]``."""
        num_missing = self.spectrogram.config.num_samples - inputs.shape[1]
        x = self.spectrogram(functional.pad(inputs, (0, num_missing)) if num_missing else inputs)
        x = functional.gelu(self.first_convolution(neighbours(x)))
        return functional.gelu(self.second_convolution(neighbours(x, stride=2)))


def neighbours(x: Tensor, stride: int = 1) -> Tensor:
    """``x [batch, frames, size]`` to ``[batch, frames / stride, 3 * size]``.

    Each vector is that of the frame before, of the frame and of the one after, zeros at the ends.
    """
    padded = functional.pad(x, (0, 0, 1, 1))
    length = x.shape[1]
    return torch.cat([padded[:, first : first + length : stride] for first in range(3)], 2)


def fourier_basis(config: AudioConfig) -> Tensor:
    """``[samples, 2 * frequencies]``: cosines, then sines, times the periodic Hann window.

    Zeros follow, up to a multiple of ``hop_size``.
    """
    size = config.fft_size
    time = torch.arange(size, dtype=torch.float64)
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * time / size)
    # Whole turns are dropped, for exact angles.
    turns = torch.outer(time, torch.arange(size // 2 + 1, dtype=torch.float64)) % size
    angles = 2 * math.pi * turns / size
    basis = torch.cat([angles.cos(), angles.sin()], 1) * window[:, None]
    return functional.pad(basis, (0, 0, 0, -size % config.hop_size)).float()


def mel_filters(config: AudioConfig) -> Tensor:
    """``[frequencies, mel bins]``: triangles of equal area, evenly spaced in mel.

    Slaney 1998, "Auditory Toolbox": mel is linear below 1,000 Hz and logarithmic above.
    """
    top = _to_mel(config.sample_rate / 2)
    mels = torch.linspace(0, top, config.num_mel_bins + 2, dtype=torch.float64)
    logarithmic = LOG_START * torch.exp(LOG_STEP * (mels - LOG_START / LINEAR_HERTZ))
    edges = torch.where(mels < LOG_START / LINEAR_HERTZ, mels * LINEAR_HERTZ, logarithmic)
    frequencies = torch.linspace(
        0, config.sample_rate / 2, config.fft_size // 2 + 1, dtype=torch.float64
    )[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies - low) / (middle - low)
    falling = (high - frequencies) / (high - middle)
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return (triangles * 2 / (high - low)).float()


def _to_mel(hertz: float) -> float:
    if hertz < LOG_START:
        return hertz / LINEAR_HERTZ
    return LOG_START / LINEAR_HERTZ + math.log(hertz / LOG_START) / LOG_STEP


def _input_config(model: ModelConfig, config: AudioConfig) -> ModelConfig:
    """``model`` with positions for a recording's vectors, and without an input norm."""
    return structs.replace(model, position=config.position, embedding=EmbeddingConfig())
