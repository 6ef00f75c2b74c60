"""Small random speech encoders with connectionist temporal classification."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
)

from model.audio import Samples

SAMPLE_RATE = 16_000
LETTERS = "|ETAONIHSRDLUMWCFGYPBVK'XJQZ"
VOCABULARY = {token: id_ for id_, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *LETTERS])}
# Convolutions with the sizes and strides of the published models, and fewer channels.
SMALL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "conv_dim": (24,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "hidden_dropout": 0.0,
    "layerdrop": 0.0,
}
# As in wav2vec2-base-960h, and as in XLSR's models.
BASE: dict[str, Any] = {"feat_extract_norm": "group", "do_stable_layer_norm": False}
LARGE: dict[str, Any] = {
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "conv_bias": True,
}


def network(seed: int = 0, **changes: Any) -> Wav2Vec2ForCTC:
    """A random model whose transcripts have letters, spaces and blanks."""
    torch.manual_seed(seed)
    model: Wav2Vec2ForCTC = Wav2Vec2ForCTC(Wav2Vec2Config(**SMALL | changes)).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(40.0)
        for name, parameter in model.named_parameters():
            if "conv_layers" in name and parameter.ndim > 1:
                parameter.mul_(1.5)
    return model


def save_processor(folder: Path, *, normalize: bool = True, **options: Any) -> Wav2Vec2Processor:
    """Saves the vocabulary and the feature extractor."""
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), **options)
    extractor = Wav2Vec2FeatureExtractor(do_normalize=normalize)
    processor = Wav2Vec2Processor(extractor, tokenizer)
    processor.save_pretrained(folder)
    return processor


def save(folder: Path, seed: int = 0, **changes: Any) -> Wav2Vec2Processor:
    """Saves :func:`network` with its processor."""
    network(seed, **changes).save_pretrained(folder)
    return save_processor(folder)


def expected_logits(model: Any, processor: Wav2Vec2Processor, samples: Samples) -> torch.Tensor:
    """The logits of transformers for one recording, ``[frames, vocabulary]``."""
    waveform = samples.astype(np.float32) / 2**15
    inputs = processor(waveform, sampling_rate=SAMPLE_RATE, return_tensors="pt")
    with torch.no_grad():
        logits: torch.Tensor = model(inputs["input_values"].float()).logits[0]
    return logits


def expected_text(model: Any, processor: Wav2Vec2Processor, samples: Samples) -> str:
    """The transcript of transformers for one recording."""
    text: str = processor.decode(expected_logits(model, processor, samples).argmax(-1))
    return text
