"""Small random classifiers of recordings."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForSequenceClassification

from model.audio import Samples
from tests.ctc_models import SAMPLE_RATE, SMALL

LABELS = ("yes", "no", "up", "down", "left")
CLASSES: dict[str, Any] = {
    "id2label": dict(enumerate(LABELS)),
    "label2id": {label: id_ for id_, label in enumerate(LABELS)},
    "classifier_proj_size": 24,
}


def prepared(model: Any) -> Any:
    """``model`` in evaluation, with logits of several units, and layers of different weights."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("projector.weight", "classifier.")) and parameter.ndim > 1:
                parameter.mul_(20.0)
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


def expected_logits(model: Any, extractor: Any, samples: Samples) -> np.ndarray[Any, Any]:
    """The logits of transformers for one recording, ``[labels]``."""
    waveform = samples.astype(np.float32) / 2**15
    inputs = extractor(waveform, sampling_rate=SAMPLE_RATE, return_tensors="pt")
    with torch.no_grad():
        logits: np.ndarray[Any, Any] = model(**inputs).logits[0].numpy()
    return logits
