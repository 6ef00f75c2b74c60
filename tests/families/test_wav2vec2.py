"""Speech encoders with CTC against transformers: Wav2Vec2, HuBERT and data2vec-audio."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    Data2VecAudioConfig,
    Data2VecAudioForCTC,
    HubertConfig,
    HubertForCTC,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)

from export.checkpoint import Checkpoint
from export.encoding import EncoderInputs, encode_eagerly
from export.errors import SourceError, UnsupportedError
from export.parity_reference import TOLERANCE
from export.smooth_quant import smooth_activations
from export.sources import load_checkpoint
from export.speech import SpeechWindow
from model.bundle import Task
from model.transformer import from_weights
from tests.ctc_models import BASE, LARGE, SMALL, VOCABULARY, expected_logits, save_processor
from tests.export.importers.support import edit_json
from tests.families.harness import saved
from tests.families.recordings import check_recordings

SECONDS = (1.1, 0.025, 0.4)  # of windows; the second one has a single frame
RATE = 16_000
# Positional convolutions of data2vec-audio.
DATA2VEC: dict[str, Any] = {"num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 7}


@contextmanager
def case(model: Any, *, normalize: bool = True) -> Iterator[tuple[Checkpoint, Any]]:
    """``model`` with random weights, imported, and its processor."""
    with saved(model) as folder:
        processor = save_processor(folder, normalize=normalize)
        yield load_checkpoint(str(folder)), processor


def windows_of(checkpoint: Checkpoint) -> EncoderInputs:
    """Rising tones in noise, of several lengths."""
    assert checkpoint.audio is not None
    rng, windows = np.random.default_rng(0), []
    for index, seconds in enumerate(SECONDS):
        time = np.arange(round(seconds * RATE)) / RATE
        tone = np.sin(2 * np.pi * (200 * (index + 1) * time + 150 * time**2))
        sound = (8000 * tone + rng.normal(scale=500, size=len(time))).astype(np.int16)
        windows.append(SpeechWindow(sound, checkpoint.audio.tokens_of(len(sound)), []))
    return EncoderInputs([], None, speech=windows)


def check_eager(model: Any, **options: Any) -> None:
    with case(model, **options) as (checkpoint, processor):
        inputs = windows_of(checkpoint)
        smoothed = smooth_activations(checkpoint.config, checkpoint.weights, inputs.speech)
        for weights in (checkpoint.weights, smoothed):
            outputs = encode_eagerly(from_weights(checkpoint.config, weights), inputs)
            for (logits,), window in zip(outputs, inputs.speech, strict=True):
                expected = expected_logits(model, processor, window.samples)
                assert logits.shape == expected.shape
                assert float(np.abs(logits - expected.numpy()).max()) <= TOLERANCE


def check_graphs(family: str, model: Any) -> None:
    """Compares a padded batch, and each window alone, with transformers; records the row."""
    with case(model) as (checkpoint, processor), tempfile.TemporaryDirectory() as folder:
        inputs = windows_of(checkpoint)
        expected = [expected_logits(model, processor, x.samples).numpy() for x in inputs.speech]
        check_recordings(checkpoint, inputs, expected, Path(folder), family)


AXES: dict[str, st.SearchStrategy[Any]] = {
    "num_hidden_layers": st.integers(1, 3),
    "num_attention_heads": st.sampled_from((1, 4)),
    "feat_extract_norm": st.sampled_from(("group", "layer")),
    "do_stable_layer_norm": st.booleans(),
    "conv_bias": st.booleans(),
    "num_conv_pos_embeddings": st.sampled_from((5, 16)),
    "hidden_act": st.sampled_from(("gelu", "relu")),
    "layer_norm_eps": st.sampled_from((1e-5, 1e-2)),
}


@settings(max_examples=8, deadline=None)
@given(st.fixed_dictionaries(AXES), st.booleans())
def test_eager_wav2vec2_matches_transformers(changes: dict[str, Any], normalize: bool) -> None:
    check_eager(Wav2Vec2ForCTC(Wav2Vec2Config(**SMALL | changes)), normalize=normalize)


@settings(max_examples=4, deadline=None)
@given(st.fixed_dictionaries(AXES), st.booleans())
def test_eager_hubert_matches_transformers(changes: dict[str, Any], has_norm: bool) -> None:
    config = HubertConfig(**SMALL | changes, feat_proj_layer_norm=has_norm)
    check_eager(HubertForCTC(config))


@settings(max_examples=4, deadline=None)
@given(st.booleans(), st.sampled_from((6, 7)))
def test_eager_data2vec_matches_transformers(bias: bool, size: int) -> None:
    changes = DATA2VEC | {"conv_bias": bias, "conv_pos_kernel_size": size}
    check_eager(Data2VecAudioForCTC(Data2VecAudioConfig(**SMALL | changes)))


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("Wav2Vec2", lambda: Wav2Vec2ForCTC(Wav2Vec2Config(**SMALL | BASE))),
        ("Wav2Vec2", lambda: Wav2Vec2ForCTC(Wav2Vec2Config(**SMALL | LARGE))),
        ("HuBERT", lambda: HubertForCTC(HubertConfig(**SMALL | BASE))),
        (
            "data2vec-audio",
            lambda: Data2VecAudioForCTC(Data2VecAudioConfig(**SMALL | DATA2VEC)),
        ),
    ],
)
def test_graphs_match_transformers(family: str, model: Any) -> None:
    check_graphs(family, model())


def save_small(folder: Path, **changes: Any) -> None:
    Wav2Vec2ForCTC(Wav2Vec2Config(**SMALL | changes)).save_pretrained(folder)
    save_processor(folder)


def test_what_a_model_takes_and_says(tmp_path: Path) -> None:
    save_small(tmp_path)
    (tmp_path / "README.md").write_text("---\nlanguage:\n- pt\n---\n")
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.tasks == (Task.TRANSCRIBE,)
    assert checkpoint.source_language == "pt"
    assert checkpoint.audio is not None
    assert (checkpoint.audio.frame_size, checkpoint.audio.hop_size) == (400, 320)
    assert (checkpoint.audio.window_seconds, checkpoint.audio.num_tokens) == (30.0, 1499)
    assert checkpoint.ctc is not None
    assert (checkpoint.ctc.blank, checkpoint.ctc.word_delimiter) == (0, VOCABULARY["|"])


def test_both_names_of_weight_norm_are_read(tmp_path: Path) -> None:
    save_small(tmp_path)
    expected = load_checkpoint(str(tmp_path)).weights
    path, new = tmp_path / "model.safetensors", "parametrizations.weight.original"
    weights = {
        name.replace(f"{new}0", "weight_g").replace(f"{new}1", "weight_v"): weight
        for name, weight in load_file(path).items()
    }
    assert any(name.endswith("weight_g") for name in weights)
    save_file(weights, path)
    found = load_checkpoint(str(tmp_path)).weights
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"add_adapter": True}, "add_adapter"),
        ("config.json", {"adapter_attn_dim": 16}, "adapter_attn_dim"),
        ("config.json", {"feat_extract_norm": "batch"}, "feat_extract_norm"),
        ("processor_config.json", {"feature_extractor": {"padding_value": 1.0}}, "padding_value"),
        ("tokenizer_config.json", {"tokenizer_class": "Other"}, "tokenizer_class"),
        ("config.json", {"architectures": ["Wav2Vec2ForXVector"]}, "Wav2Vec2ForXVector"),
    ],
)
def test_what_changes_outputs_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], message: str
) -> None:
    save_small(tmp_path)
    edit_json(tmp_path / file, **change)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [({"a": 5}, "blank"), ({"eng": {"a": 5, "<pad>": 0}}, "several languages"), ([], "JSON")],
)
def test_damaged_vocabularies_are_refused(tmp_path: Path, vocabulary: object, message: str) -> None:
    save_small(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(SourceError, match=message):
        load_checkpoint(str(tmp_path))


def test_ids_beyond_the_outputs_are_left_out(tmp_path: Path) -> None:
    save_small(tmp_path)
    beyond = VOCABULARY | {"<beyond>": len(VOCABULARY)}
    (tmp_path / "vocab.json").write_text(json.dumps(beyond))
    checkpoint = load_checkpoint(str(tmp_path))
    assert "<beyond>" not in checkpoint.tokenizer_json
    assert msgspec.json.decode(checkpoint.tokenizer_json)["model"]["vocab"] == VOCABULARY
