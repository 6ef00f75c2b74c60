"""Spectrograms and convolutions of speech encoders against transformers and torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import WhisperFeatureExtractor

from export.speech import recording
from model.audio_config import AudioConfig
from model.audio_embedding import LogMelSpectrogram, mel_filters, neighbours

SAMPLE_RATE = 16_000
TOLERANCE = 2e-5


def reference(samples: torch.Tensor, config: AudioConfig) -> np.ndarray:
    """``[batch, frames, mel bins]``"""
    extractor = WhisperFeatureExtractor(
        feature_size=config.num_mel_bins,
        sampling_rate=config.sample_rate,
        hop_length=config.hop_size,
        chunk_length=config.num_samples // config.sample_rate,
        n_fft=config.fft_size,
    )
    rows = [row.numpy().astype(np.float32) / 2**15 for row in samples]
    found = extractor(rows, sampling_rate=config.sample_rate, return_tensors="np")
    features: np.ndarray = found["input_features"].transpose(0, 2, 1)
    return features


@pytest.mark.parametrize(
    "config",
    [
        AudioConfig(num_samples=2 * SAMPLE_RATE),
        AudioConfig(num_samples=2 * SAMPLE_RATE, num_mel_bins=128),
        AudioConfig(num_samples=SAMPLE_RATE, fft_size=320),
        AudioConfig(num_samples=SAMPLE_RATE, fft_size=512, hop_size=100),
    ],
)
def test_spectrograms_match_transformers(config: AudioConfig) -> None:
    noise = torch.randn(2, config.num_samples, generator=torch.Generator().manual_seed(0))
    samples = torch.stack(
        [
            (4000 * noise[0]).to(torch.int16),
            (300 * noise[1] * (torch.arange(config.num_samples) < 5000)).to(torch.int16),
        ]
    )
    actual = LogMelSpectrogram(config)(samples).numpy()
    expected = reference(samples, config)
    assert actual.shape == (2, config.num_frames, config.num_mel_bins)
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


def test_spectrograms_of_speech_match_transformers() -> None:
    samples = torch.from_numpy(recording("austen-2", SAMPLE_RATE)[None, : 2 * SAMPLE_RATE])
    config = AudioConfig(num_samples=2 * SAMPLE_RATE)
    actual = LogMelSpectrogram(config)(samples).numpy()
    # The smallest values of both are rounded, in another order of sums.
    np.testing.assert_allclose(actual, reference(samples, config), atol=1e-3)


def test_silence_has_one_value() -> None:
    config = AudioConfig(num_samples=SAMPLE_RATE)
    spectrogram = LogMelSpectrogram(config)(torch.zeros(1, SAMPLE_RATE, dtype=torch.int16))
    assert spectrogram.unique().tolist() == [pytest.approx((-10 + 4) / 4)]


def test_each_filter_has_one_peak() -> None:
    for filter_ in mel_filters(AudioConfig()).T:
        rises = filter_.diff() > 0
        peak = int(filter_.argmax())
        assert filter_[peak] > 0
        assert rises[:peak][filter_[1 : peak + 1] > 0].all()
        assert not rises[peak:].any()


@pytest.mark.parametrize("stride", [1, 2])
def test_neighbours_make_a_convolution_a_linear_map(stride: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 10, 4, generator=generator)
    weight = torch.randn(6, 4, 3, generator=generator)  # [outputs, inputs, 3]
    expected = functional.conv1d(x.transpose(1, 2), weight, stride=stride, padding=1)
    actual = neighbours(x, stride) @ weight.permute(2, 1, 0).flatten(0, 1)
    torch.testing.assert_close(actual, expected.transpose(1, 2))
