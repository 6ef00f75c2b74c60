"""Classifiers of recordings against transformers: Wav2Vec2, HuBERT and data2vec-audio."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Data2VecAudioConfig,
    Data2VecAudioForSequenceClassification,
    HubertConfig,
    HubertForSequenceClassification,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
)

from export.checkpoint import Checkpoint
from export.encoding import EncoderInputs, encode_eagerly, encode_in_graph
from export.errors import UnsupportedError
from export.graphs import export_graphs
from export.parity_reference import TOLERANCE
from export.runtime import Floats, Session
from export.smooth_quant import smooth_activations
from export.sources import load_checkpoint
from model.bundle import ScoreFunction, Task
from model.transformer import from_weights
from tests import audio_models
from tests.audio_models import CLASSES, LABELS, expected_logits, prepared
from tests.ctc_models import BASE, LARGE, SMALL
from tests.export.importers.support import edit_json
from tests.families.decoder_check import max_errors
from tests.families.harness import saved
from tests.families.test_wav2vec2 import DATA2VEC, windows_of

# As in transformers 4: the last layer's output is summed after the norm at the end.
SUM: dict[str, Any] = {"use_weighted_layer_sum": True, "tie_last_hidden_states": True}
CONFIG: dict[str, Any] = SMALL | CLASSES


@contextmanager
def case(model: Any) -> Iterator[tuple[Checkpoint, EncoderInputs, list[Floats]]]:
    """``model`` imported, windows of several lengths, and the logits of transformers for each."""
    model = prepared(model)
    with saved(model) as folder:
        extractor = Wav2Vec2FeatureExtractor()
        extractor.save_pretrained(folder)
        checkpoint = load_checkpoint(str(folder))
        inputs = windows_of(checkpoint)
        expected = [expected_logits(model, extractor, window.samples) for window in inputs.speech]
        assert min(abs(logits).max() for logits in expected) > 0.1
        yield checkpoint, inputs, expected


def check_eager(model: Any) -> None:
    with case(model) as (checkpoint, inputs, expected):
        smoothed = smooth_activations(checkpoint.config, checkpoint.weights, inputs.speech)
        for weights in (checkpoint.weights, smoothed):
            outputs = encode_eagerly(from_weights(checkpoint.config, weights), inputs)
            assert max(max_errors([own for (own,) in outputs], expected)) <= TOLERANCE


AXES: dict[str, st.SearchStrategy[Any]] = {
    "num_hidden_layers": st.integers(1, 3),
    "feat_extract_norm": st.sampled_from(("group", "layer")),
    "do_stable_layer_norm": st.booleans(),
    "classifier_proj_size": st.sampled_from((8, 64)),
}


@settings(max_examples=6, deadline=None)
@given(st.fixed_dictionaries(AXES), st.booleans())
def test_eager_wav2vec2_matches_transformers(changes: dict[str, Any], has_sum: bool) -> None:
    config = Wav2Vec2Config(**CONFIG | changes | (SUM if has_sum else {}))
    check_eager(Wav2Vec2ForSequenceClassification(config))


@pytest.mark.parametrize("changes", [BASE, LARGE | SUM])
def test_eager_hubert_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(HubertForSequenceClassification(HubertConfig(**CONFIG | changes)))


@pytest.mark.parametrize("changes", [{}, SUM])
def test_eager_data2vec_matches_transformers(changes: dict[str, Any]) -> None:
    config = Data2VecAudioConfig(**CONFIG | DATA2VEC | changes)
    check_eager(Data2VecAudioForSequenceClassification(config))


@pytest.mark.parametrize("changes", [BASE, LARGE | SUM])
def test_graphs_match_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    """In a padded batch, and each window alone."""
    with case(Wav2Vec2ForSequenceClassification(Wav2Vec2Config(**CONFIG | changes))) as found:
        checkpoint, inputs, expected = found
        graphs = export_graphs(checkpoint.config, checkpoint.weights, tmp_path)
        session = Session(tmp_path, graphs["encode"])
        batched = [outputs[0] for outputs in encode_in_graph(session, inputs)]
        parts = [inputs.part(row, row + 1) for row in range(len(inputs))]
        alone = [encode_in_graph(session, part)[0][0] for part in parts]
        assert max(*max_errors(batched, expected), *max_errors(alone, expected)) <= 5e-6


def test_what_a_classifier_takes_and_says(tmp_path: Path) -> None:
    audio_models.save(tmp_path, problem_type="multi_label_classification")
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.tasks == (Task.CLASSIFY,)
    assert checkpoint.labels == LABELS
    assert checkpoint.score_function == ScoreFunction.SIGMOID
    assert checkpoint.audio is not None
    assert (checkpoint.audio.frame_size, checkpoint.audio.window_seconds) == (400, 30.0)
    assert (checkpoint.ctc, checkpoint.config.vocabulary_size) == (None, 0)


def test_one_label_is_no_reranker(tmp_path: Path) -> None:
    audio_models.save(tmp_path, id2label={0: "age"}, label2id={"age": 0})
    assert load_checkpoint(str(tmp_path)).tasks == (Task.CLASSIFY,)


def test_weights_of_layers_are_a_distribution(tmp_path: Path) -> None:
    audio_models.save(tmp_path, **SUM)
    weights = load_checkpoint(str(tmp_path)).weights["encoder.layer_weights"]
    assert weights.shape == (SMALL["num_hidden_layers"] + 1,)
    assert torch.isclose(weights.sum(), torch.tensor(1.0))


def test_a_sum_without_the_last_norm_is_refused(tmp_path: Path) -> None:
    audio_models.save(tmp_path, **LARGE, **SUM)
    edit_json(tmp_path / "config.json", tie_last_hidden_states=False)
    with pytest.raises(UnsupportedError, match="tie_last_hidden_states"):
        load_checkpoint(str(tmp_path))
