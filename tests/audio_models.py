"""Small random classifiers of recordings."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForAudioClassification,
)

from model.audio import Samples
from tests.ctc_models import SAMPLE_RATE, SMALL

LABELS = ("yes", "no", "up", "down", "left")
CLASSES: dict[str, Any] = {
    "id2label": dict(enumerate(LABELS)),
    "label2id": {label: id_ for id_, label in enumerate(LABELS)},
    "classifier_proj_size": 24,
}
# Windows of 0.98 seconds: 5 rows of 9 patches.
AST: dict[str, Any] = CLASSES | {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_length": 96,
    "num_mel_bins": 64,
}
# Windows of 2 seconds.
WHISPER: dict[str, Any] = CLASSES | {
    "d_model": 64,
    "encoder_layers": 2,
    "num_hidden_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_layers": 1,
    "max_source_positions": 100,
}


def prepared(model: Any) -> Any:
    """``model`` in evaluation, with logits of several units, and layers of different weights."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("projector.weight", "classifier.")) and parameter.ndim > 1:
                parameter.mul_(20.0)
            elif name.endswith(("position_embeddings", "cls_token", "distillation_token")):
                parameter.normal_()
            elif name == "layer_weights":
                parameter.copy_(torch.randn(len(parameter)))
    return model.eval()


def network(seed: int = 0, **changes: Any) -> Any:
    """A random Wav2Vec2 with :data:`LABELS`."""
    torch.manual_seed(seed)
    config = Wav2Vec2Config(**SMALL | CLASSES | changes)
    return prepared(Wav2Vec2ForSequenceClassification(config))


def save(folder: Path, seed: int = 0, **changes: Any) -> Wav2Vec2FeatureExtractor:
    """Saves :func:`network` with its feature extractor."""
    network(seed, **changes).save_pretrained(folder)
    extractor = Wav2Vec2FeatureExtractor()
    extractor.save_pretrained(folder)
    return extractor


def ast_network(**changes: Any) -> Any:
    """A random Audio Spectrogram Transformer."""
    torch.manual_seed(0)
    return prepared(ASTForAudioClassification(ASTConfig(**AST | changes)))


def save_ast(folder: Path, **changes: Any) -> ASTFeatureExtractor:
    """Saves :func:`ast_network` with its feature extractor."""
    model = ast_network(**changes)
    model.save_pretrained(folder)
    extractor = ASTFeatureExtractor(
        max_length=model.config.max_length, num_mel_bins=model.config.num_mel_bins
    )
    extractor.save_pretrained(folder)
    return extractor


def whisper_network(**changes: Any) -> Any:
    """A random Whisper with labels."""
    torch.manual_seed(0)
    return prepared(WhisperForAudioClassification(WhisperConfig(**WHISPER | changes)))


def save_whisper(folder: Path, **changes: Any) -> WhisperFeatureExtractor:
    """Saves :func:`whisper_network` with its feature extractor."""
    model = whisper_network(**changes)
    model.save_pretrained(folder)
    seconds = model.config.max_source_positions // 50
    extractor = WhisperFeatureExtractor(
        feature_size=model.config.num_mel_bins, chunk_length=seconds
    )
    extractor.save_pretrained(folder)
    return extractor


def expected_logits(model: Any, extractor: Any, samples: Samples) -> np.ndarray[Any, Any]:
    """The logits of transformers for one recording, ``[labels]``."""
    waveform = samples.astype(np.float32) / 2**15
    inputs = extractor(waveform, sampling_rate=SAMPLE_RATE, return_tensors="pt")
    with torch.no_grad():
        logits: np.ndarray[Any, Any] = model(**inputs).logits[0].numpy()
    return logits
