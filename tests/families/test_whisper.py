"""Whisper against transformers."""

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
from transformers import WhisperConfig, WhisperForConditionalGeneration

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError, WeightsError
from export.graphs import export_graphs
from export.smooth_quant import smooth_activations
from export.sources import load_checkpoint
from export.speech import Source, SpeechWindow
from model.bundle import Task
from model.kernels import Step
from model.transformer import from_weights
from tests import speech_models
from tests.export.importers.support import edit_json, edit_weights
from tests.families.decoder_check import check_decoder
from tests.families.harness import saved
from tests.families.rows import operators_of, record_family, sizes_of
from tests.speech_models import EOS, START, WINDOW_SECONDS

# The spectrogram's smallest values are rounded: those of transformers in another order.
TOLERANCE = 1e-3
SAMPLE_RATE = 16_000
LENGTHS = (2.0, 0.7, 0.0)  # seconds of sound in a window
SMALL = speech_models.network().config.to_dict()


def model_of(**changes: Any) -> Any:
    config: Any = WhisperConfig
    model = WhisperForConditionalGeneration(config(**SMALL | changes))
    model.generation_config = speech_models.network().generation_config
    return model


@contextmanager
def case(model: Any, **extraction: Any) -> Iterator[tuple[Checkpoint, Any]]:
    """``model`` with random weights, imported, and the extractor of its features."""
    extractor = speech_models.feature_extractor(**extraction)
    with saved(model) as folder:
        extractor.save_pretrained(folder)
        (folder / "tokenizer.json").write_text(speech_models.tokenizer_json())
        yield load_checkpoint(str(folder)), extractor


def windows_of(checkpoint: Checkpoint) -> list[SpeechWindow]:
    """Rising tones in noise, of several lengths."""
    assert checkpoint.audio is not None
    spec, rng = checkpoint.audio, np.random.default_rng(0)
    windows = []
    for index, seconds in enumerate(LENGTHS):
        time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
        tone = np.sin(2 * np.pi * (200 * (index + 1) * time + 150 * time**2))
        sound = 8000 * tone + rng.normal(scale=500, size=len(time))
        samples = np.zeros(spec.num_samples, np.int16)
        samples[: len(time)] = sound[: spec.num_samples]
        windows.append(SpeechWindow(samples, spec.num_tokens, [START, 5 + index, 7]))
    return windows


def features(extractor: Any, source: Source) -> dict[str, torch.Tensor]:
    """What transformers' model reads."""
    assert isinstance(source, SpeechWindow)
    samples = source.samples.astype(np.float32) / 2**15
    found = extractor(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt")
    return {"input_features": found["input_features"].float()}


@settings(max_examples=10, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "encoder_layers": st.integers(1, 3),
            "decoder_layers": st.integers(1, 3),
            "encoder_attention_heads": st.sampled_from((1, 8)),
            "decoder_attention_heads": st.sampled_from((2, 4)),
            "decoder_ffn_dim": st.sampled_from((48, 128)),
            "activation_function": st.sampled_from(("gelu", "relu")),
            "num_mel_bins": st.sampled_from((80, 128)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    model = model_of(**changes)
    with case(model, feature_size=changes["num_mel_bins"]) as (checkpoint, extractor):
        config, weights = checkpoint.config, checkpoint.weights
        windows = windows_of(checkpoint)
        for each in (weights, smooth_activations(config, weights, windows)):
            module = from_weights(config, each)
            for window in windows:
                ids = torch.tensor([window.target])
                expected = model(**features(extractor, window), decoder_input_ids=ids).logits
                states = module.encode_audio(torch.from_numpy(window.samples[None]))
                lengths = torch.tensor([len(window)], dtype=torch.int32)
                step = Step.whole(torch.tensor([ids.shape[1]]), lengths)
                logits = module.logits(module.decode(ids, step, states).hidden)
                assert float((logits - expected).abs().max()) <= TOLERANCE


def test_graphs_match_transformers() -> None:
    model = model_of()
    with case(model) as (checkpoint, extractor), tempfile.TemporaryDirectory() as folder:
        directory, config = Path(folder), checkpoint.config
        graphs = export_graphs(config, checkpoint.weights, directory)
        rows = [[5], [6, 7, 8], [9, 10]]
        checked = check_decoder(
            model,
            checkpoint,
            rows,
            directory,
            graphs,
            windows_of(checkpoint),
            lambda source: features(extractor, source),
        )
        row = msgspec.structs.replace(
            checked.row,
            family="Whisper",
            operators=operators_of(directory, graphs),
            bytes_by_precision=sizes_of(config, checked.reference, directory, graphs),
        )
        record_family(row)


def test_what_a_model_takes_and_says(tmp_path: Path) -> None:
    checkpoint = speech_models.checkpoint(tmp_path)
    assert checkpoint.tasks == (Task.TRANSCRIBE,)
    assert checkpoint.audio is not None
    assert checkpoint.audio.window_seconds == WINDOW_SECONDS
    assert checkpoint.audio.num_tokens == 50 * WINDOW_SECONDS
    assert checkpoint.languages == {"en": START + 1, "de": START + 2, "fr": START + 3}
    tokens = checkpoint.transcription
    assert tokens is not None
    assert tokens.first_timestamp == tokens.no_timestamps + 1 == speech_models.FIRST_TIMESTAMP
    assert tokens.num_timestamps == 50 * WINDOW_SECONDS + 1
    assert tokens.first_suppressed == (32, EOS)
    assert checkpoint.special_tokens.decoder_start == START


def test_whole_processors_are_read(tmp_path: Path) -> None:
    speech_models.save(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    (tmp_path / "processor_config.json").write_text(f'{{"feature_extractor": {path.read_text()}}}')
    path.unlink()
    edit_json(
        tmp_path / "processor_config.json", feature_extractor={"hop_length": 80, "n_fft": 200}
    )
    audio = load_checkpoint(str(tmp_path)).config.audio
    assert audio is not None
    assert (audio.hop_size, audio.fft_size, audio.num_samples) == (80, 200, SAMPLE_RATE)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"scale_embedding": True}, "scale_embedding"),
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("preprocessor_config.json", {"dither": 0.1}, "dither"),
        ("preprocessor_config.json", {"do_normalize": True}, "do_normalize"),
    ],
)
def test_what_changes_outputs_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], message: str
) -> None:
    speech_models.save(tmp_path)
    edit_json(tmp_path / file, **change)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


def test_other_positions_are_refused(tmp_path: Path) -> None:
    speech_models.save(tmp_path)
    name = "model.encoder.embed_positions.weight"
    edit_weights(tmp_path, values={name: torch.zeros(50 * WINDOW_SECONDS, 64)})
    with pytest.raises(WeightsError, match="embed_positions"):
        load_checkpoint(str(tmp_path))


def test_tokenizers_without_timestamps_are_refused(tmp_path: Path) -> None:
    speech_models.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("<|notimestamps|>", "<|other|>"))
    with pytest.raises(SourceError, match="notimestamps"):
        load_checkpoint(str(tmp_path))
