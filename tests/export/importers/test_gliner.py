"""GLiNER: the graph against the formulas of its paper, and folders that are refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.bundle_writer import write_bundle
from export.encoding import EncoderInputs, encode_eagerly, encode_in_graph
from export.errors import SourceError, UnsupportedError, WeightsError
from export.fidelity.subject import Subject
from export.graphs import export_graphs
from export.quality.choice import choose_held_out
from export.runtime import Session
from export.sources import load_checkpoint
from export.span_places import LABELS, RowPlaces, prompted_row
from model.bundle import Precision, Task
from model.bundle_files import read_manifest, read_parity
from model.transformer import from_weights
from tests import gliner_models
from tests.export.importers.support import edit_json, edit_weights
from tests.gliner_models import (
    ENCODER_SIZE,
    MAX_TOKENS,
    MAX_WIDTH,
    MAX_WORDS,
    SIZE,
    make,
    prompted,
    save_source,
)

TOLERANCE = 1e-4
TEXTS = (
    "Anna Smith moved from Lisbon to Berlin in May 2021.",
    "a",
    "The dog \u200b met an e\u0301tude",  # two words have no tokens: a space and an accent
)
CANDIDATES = (("person",), ("person", "large city", "date"), ("x", "y"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_source(tmp_path_factory.mktemp("gliner"), gliner_models.model())


@pytest.fixture
def copied(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source, tmp_path / "source")


@pytest.mark.parametrize(
    ("encoder", "size", "num_rnn_layers", "reads_marker"),
    [
        ("deberta", SIZE, 1, True),
        ("deberta", ENCODER_SIZE, 0, False),
        ("bert", SIZE, 0, True),
        ("bert", ENCODER_SIZE, 2, True),
        ("modernbert", SIZE, 1, False),
        ("modernbert", ENCODER_SIZE, 0, True),
    ],
)
def test_graph_scores_spans_as_the_formulas_do(
    tmp_path: Path, encoder: str, size: int, num_rnn_layers: int, reads_marker: bool
) -> None:
    model = make(encoder, size, num_rnn_layers)
    folder = save_source(tmp_path / "source", model, encoder, size, embed_ent_token=reads_marker)
    checkpoint = load_checkpoint(str(folder))
    rows = [
        prompted(text, labels, reads_marker=reads_marker)
        for text, labels in zip(TEXTS, CANDIDATES, strict=True)
    ]
    rows[2].words.insert(2, -1)  # no token: a vector of zeros
    ids, num_segments = [row.ids for row in rows], checkpoint.config.embedding.num_segments
    inputs = EncoderInputs(
        ids,
        [[0] * len(row) for row in ids] if num_segments else None,
        places=[RowPlaces(row.words, row.labels) for row in rows],
    )
    graphs = export_graphs(checkpoint.config, checkpoint.weights, tmp_path)
    in_graph = encode_in_graph(Session(tmp_path, graphs["encode"]), inputs)
    eager = encode_eagerly(from_weights(checkpoint.config, checkpoint.weights), inputs)
    for row, *found in zip(rows, in_graph, eager, strict=True):
        expected = model.logits(row, MAX_WIDTH).numpy()
        assert len(row.words) == 1 or expected.std() > 0.2
        for (logits,) in found:
            np.testing.assert_allclose(logits, expected, atol=TOLERANCE)


def test_manifest_says_how_texts_are_read(source: Path, tmp_path: Path) -> None:
    manifest = read_manifest(write_bundle(load_checkpoint(str(source)), tmp_path))
    assert manifest.tasks == (Task.TAG,)
    assert manifest.labels == ()
    spec = manifest.span_tagging
    assert spec
    markers = gliner_models.tokenizer().convert_tokens_to_ids(["<<ENT>>", "<<SEP>>"])
    assert [spec.marker, spec.separator] == markers
    assert (spec.max_width, spec.max_words, spec.reads_marker) == (MAX_WIDTH, MAX_WORDS, True)


def test_int8_has_figures_of_each_span_and_label(source: Path, tmp_path: Path) -> None:
    bundle = write_bundle(load_checkpoint(str(source)), tmp_path, precision=Precision.INT8)
    fidelity = read_parity(bundle).fidelity
    assert fidelity is not None
    assert fidelity.num_texts > 10
    assert 0.9 < (fidelity.top1_agreement or 0) < 1
    assert 0 < (fidelity.max_probability_difference or 0) < 0.3
    assert any(matrix.name.startswith("head.") for matrix in fidelity.worst_matrices)


def test_texts_are_measured_as_the_server_reads_them(source: Path) -> None:
    subject = Subject.of(load_checkpoint(str(source)))
    assert subject.span_tagging is not None
    row = prompted_row(subject.tokenizer, subject.span_tagging, TEXTS[2], MAX_TOKENS)
    expected = prompted(TEXTS[2], LABELS)
    assert row == (expected.ids, (expected.words, expected.labels))
    cut = prompted_row(subject.tokenizer, subject.span_tagging, TEXTS[0], len(expected.labels) + 12)
    assert cut is not None
    assert 0 < len(cut.places.words) < len(prompted(TEXTS[0], LABELS).words)
    assert prompted_row(subject.tokenizer, subject.span_tagging, TEXTS[0], 4) is None


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "tokens": ({"span_mode": "token_level"}, "span_mode"),
    "pooling": ({"subtoken_pooling": "mean"}, "subtoken_pooling"),
    "splitter": ({"words_splitter_type": "spacy"}, "words_splitter_type"),
    "fusion": ({"fuse_layers": True}, "fuse_layers"),
    "bi-encoder": ({"labels_encoder": "bert"}, "labels_encoder: a bi-encoder is not supported"),
    "relations": ({"relations_layer": "biaffine"}, "relations_layer: relation extraction"),
    "decoder": ({"labels_decoder": "gpt2"}, "labels_decoder: a decoder of labels"),
    "context": ({"span_encoder_config": {"model_type": "rnn"}}, "span_encoder_config"),
    "family": ({"encoder_config": {"model_type": "qwen3"}}, "model_type"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses_other_architectures(copied: Path, name: str) -> None:
    changes, reason = REFUSALS[name]
    edit_json(copied / "gliner_config.json", **changes)
    with pytest.raises(UnsupportedError, match=reason):
        load_checkpoint(str(copied))


DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "encoder": ({"encoder_config": None}, "no encoder_config: save the model again with the"),
    "marker": ({"ent_token": "<<LABEL>>"}, "the tokenizer has no token '<<LABEL>>'"),
    "separator": ({"sep_token": "<<END>>"}, "the tokenizer has no token '<<END>>'"),
    "index": ({"class_token_index": 7}, "class_token_index is 7, but the tokenizer has the id"),
    "width": ({"max_width": 1000}, "max_width"),
    "words": ({"max_len": 0}, "max_len"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_refuses_damaged_folders(copied: Path, name: str) -> None:
    changes, reason = DAMAGES[name]
    edit_json(copied / "gliner_config.json", **changes)
    with pytest.raises(SourceError, match=reason):
        load_checkpoint(str(copied))


def test_refuses_an_lstm_of_an_odd_size(copied: Path) -> None:
    edit_json(copied / "gliner_config.json", hidden_size=23)
    with pytest.raises(SourceError, match="an LSTM in two directions needs an even hidden_size"):
        load_checkpoint(str(copied))


def test_names_missing_and_unexpected_weights(copied: Path) -> None:
    edit_weights(copied, remove=("rnn.lstm.bias_hh_l0_reverse",), add=("rnn.lstm.bias_hh_l1",))
    with pytest.raises(WeightsError, match=r"rnn\.lstm\.bias_hh_l0_reverse") as raised:
        load_checkpoint(str(copied))
    assert "rnn.lstm.bias_hh_l1" in str(raised.value)


def test_pickles_are_refused_with_a_command(copied: Path) -> None:
    torch.save(gliner_models.model().state_dict(), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    with pytest.raises(UnsupportedError, match="convert them to safetensors") as raised:
        load_checkpoint(str(copied))
    assert "pytorch_model.bin" in str(raised.value)


def test_no_quality_is_measured(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="--evaluate: no quality is measured"):
        choose_held_out(load_checkpoint(str(source)), str(tmp_path / "examples.jsonl"))
