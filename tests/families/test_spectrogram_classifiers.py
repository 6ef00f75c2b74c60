"""Classifiers that read spectrograms against transformers: AST and Whisper's encoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ASTFeatureExtractor

from export.checkpoint import Checkpoint
from export.encoding import EncoderInputs, encode_eagerly
from export.errors import SourceError, UnsupportedError, WeightsError
from export.parity_reference import SPEECH_TOLERANCE, TOLERANCE
from export.sources import load_checkpoint
from export.speech import SpeechWindow, recording
from model.audio_embedding import MAX_SAMPLE
from model.bundle import Task
from model.filter_bank import LogMelFilterBank
from model.spectrogram_config import SpectrogramConfig
from model.transformer import from_weights
from model.waveform import Waveforms
from tests.audio_models import (
    LABELS,
    ast_network,
    expected_logits,
    save_ast,
    save_whisper,
    whisper_network,
)
from tests.export.importers.support import edit_json
from tests.families.decoder_check import max_errors
from tests.families.recordings import check_recordings

RATE = 16_000
SUM: dict[str, Any] = {"use_weighted_layer_sum": True}


def windows_of(checkpoint: Checkpoint) -> EncoderInputs:
    """Speech: a whole window, parts of it, one of a single frame, and silence."""
    assert checkpoint.audio is not None
    spec = checkpoint.audio
    speech = recording("austen-1", RATE)[8000 : 8000 + spec.num_samples]
    parts = [speech, speech[:9000], speech[:400], np.zeros(5000, np.int16)]
    return EncoderInputs([], None, speech=[SpeechWindow(x, spec.num_tokens, []) for x in parts])


def check(
    model: Any, extractor: Any, folder: Path, family: str | None, tolerance: float = TOLERANCE
) -> None:
    """Compares the module and the graph, alone and in a batch, with transformers."""
    checkpoint = load_checkpoint(str(folder))
    inputs = windows_of(checkpoint)
    expected = [expected_logits(model, extractor, window.samples) for window in inputs.speech]
    assert min(abs(logits).max() for logits in expected) > 0.1
    outputs = encode_eagerly(from_weights(checkpoint.config, checkpoint.weights), inputs)
    assert max(max_errors([own for (own,) in outputs], expected)) <= tolerance
    check_recordings(checkpoint, inputs, expected, folder, family, tolerance)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("AST", {}),
        (
            None,
            {"patch_size": 8, "time_stride": 5, "frequency_stride": 8, "qkv_bias": False},
        ),
    ],
)
def test_ast_matches_transformers(
    family: str | None, changes: dict[str, Any], tmp_path: Path
) -> None:
    extractor = save_ast(tmp_path, **changes)
    check(ast_network(**changes), extractor, tmp_path, family)


@pytest.mark.parametrize("changes", [{}, SUM])
def test_whisper_matches_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    extractor = save_whisper(tmp_path, **changes)
    check(whisper_network(**changes), extractor, tmp_path, None, SPEECH_TOLERANCE)


@pytest.mark.parametrize("name", ["austen-1", "cards-1"])
def test_features_are_those_of_transformers(name: str) -> None:
    config = SpectrogramConfig(
        num_frames=1024,
        num_mel_bins=128,
        mean=0.0,
        deviation=1.0,
        patch_size=16,
        time_stride=10,
        frequency_stride=10,
    )
    samples = recording(name, RATE)[: config.num_samples]
    waveform = samples.astype(np.float32) / MAX_SAMPLE
    extractor = ASTFeatureExtractor(do_normalize=False)
    expected = extractor(waveform, sampling_rate=RATE, return_tensors="np")["input_values"]
    found = LogMelFilterBank(config)(Waveforms.whole(torch.from_numpy(samples[None])))
    assert float(np.abs(found.numpy() - expected).max()) <= 2e-6


def test_what_a_classifier_takes_and_says(tmp_path: Path) -> None:
    save_ast(tmp_path)
    checkpoint = load_checkpoint(str(tmp_path))
    assert (checkpoint.tasks, checkpoint.labels) == ((Task.CLASSIFY,), LABELS)
    assert checkpoint.audio is not None
    assert (checkpoint.audio.num_samples, checkpoint.audio.num_tokens) == (15_600, 47)
    assert not checkpoint.audio.has_frames


@pytest.mark.parametrize(
    ("file", "change", "error", "message"),
    [
        ("preprocessor_config.json", {"max_length": 128}, SourceError, "max_length is 96"),
        ("preprocessor_config.json", {"num_mel_bins": 80}, SourceError, "num_mel_bins is 64"),
        ("preprocessor_config.json", {"sampling_rate": 8000}, UnsupportedError, "sampling_rate"),
        ("preprocessor_config.json", {"std": 0}, SourceError, "std is not positive"),
        ("config.json", {"patch_size": [16, 8]}, UnsupportedError, "not square"),
        ("config.json", {"patch_size": 97}, SourceError, "no patches"),
        ("config.json", {"time_stride": 20}, WeightsError, "embedding.positions.weight"),
        ("config.json", {"architectures": ["ASTModel"]}, UnsupportedError, "ASTModel"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    save_ast(tmp_path)
    edit_json(tmp_path / file, **change)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))
