"""Sparse vectors of every masked language model, against transformers and a formula."""

from pathlib import Path

import numpy as np
import pytest
import torch

from export.encoding import EncoderInputs, encode_in_graph
from export.graphs import export_graphs
from export.runtime import Session
from export.sources import load_checkpoint
from model.bundle import EmbeddingKind, Task
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.export.importers.retrieval_files import add_modules, add_tokenizer
from tests.export.importers.support import save
from tests.families.test_encoder_heads import CHANGES, make, ours, theirs

TOLERANCE = 1e-4
ROWS = [[2, 9, 40, 41, 9, 22, 3], [2, 30, 3], [2, 17, 18, 3]]


def weights_of(logits: torch.Tensor, *, log_twice: bool = False) -> torch.Tensor:
    """Equation 6 of Formal et al. 2021: ``[length, vocabulary]`` to ``[vocabulary]``."""
    weights = torch.log(1 + torch.clamp(logits.double(), min=0))
    return (torch.log(1 + weights) if log_twice else weights).max(0).values


# Longformer's first token attends to all others only here, not in sentence-transformers.
@pytest.mark.parametrize("family", [name for name in CHANGES if name != "Longformer"])
def test_sparse_vectors_match_transformers(family: str, tmp_path: Path) -> None:
    model = make(family, "MaskedLM")
    save(model, tmp_path)
    add_modules(
        tmp_path,
        ("sentence_transformers.sparse_encoder.models.MLMTransformer", {}),
        (
            "sentence_transformers.sparse_encoder.models.SpladePooling",
            {"pooling_strategy": "max", "activation_function": "relu"},
        ),
    )
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.tasks == (Task.EMBED, Task.RERANK)
    lengths = torch.tensor([len(row) for row in ROWS], dtype=torch.int32)
    ids = torch.tensor([row + [0] * (7 - len(row)) for row in ROWS])
    actual = ours(checkpoint, ids, lengths)
    for row, vector in zip(ROWS, actual, strict=True):
        expected = weights_of(theirs(model, torch.tensor([row])))
        torch.testing.assert_close(vector.double(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("log_twice", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_graphs_match_transformers(tmp_path: Path, *, log_twice: bool, tied: bool) -> None:
    source = tmp_path / "source"
    model = make("Bert", "MaskedLM", tie_word_embeddings=tied)
    save(model, source)
    activation = "log1p_relu" if log_twice else "relu"
    add_modules(
        source,
        ("sentence_transformers.base.modules.transformer.Transformer", {}),
        (
            "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
            {"pooling_strategy": "max", "activation_function": activation},
        ),
    )
    checkpoint = load_checkpoint(str(source))
    graphs = export_graphs(checkpoint.config, checkpoint.weights, tmp_path)
    inputs = EncoderInputs(ROWS, [[0] * len(row) for row in ROWS])
    expected = [
        weights_of(theirs(model, torch.tensor([row])), log_twice=log_twice).numpy() for row in ROWS
    ]
    standard = encode_in_graph(Session(tmp_path, graphs["encode"]), inputs)
    # The server's kernels compute no tokens of the padding.
    padded = np.zeros((3, 7), np.int64)
    for index, row in enumerate(ROWS):
        padded[index, : len(row)] = row
    native = OrtBackend("cpu", 1).load(tmp_path / graphs["encode"].file, ()).bind({})
    lengths = np.array([len(row) for row in ROWS], np.int32)
    feed: dict[str, Array] = {
        "token_ids": padded,
        "lengths": lengths,
        "segment_ids": np.zeros_like(padded),
    }
    native_rows = np.asarray(native.run(feed)["embeddings"])
    for index, vector in enumerate(expected):
        np.testing.assert_allclose(standard[index][0], vector, atol=TOLERANCE)
        np.testing.assert_allclose(native_rows[index], vector, atol=TOLERANCE)


def test_an_option_reads_a_masked_language_model_as_sparse(tmp_path: Path) -> None:
    model = make("Bert", "MaskedLM")
    save(model, tmp_path)
    add_tokenizer(tmp_path)
    assert load_checkpoint(str(tmp_path)).tasks == (Task.FILL_MASK,)
    checkpoint = load_checkpoint(str(tmp_path), vectors=EmbeddingKind.SPARSE)
    assert checkpoint.embedding is not None
    assert checkpoint.embedding.kind == EmbeddingKind.SPARSE
    assert checkpoint.embedding.size == checkpoint.config.vocabulary_size
    (vector,) = ours(checkpoint, torch.tensor(ROWS[:1]), torch.tensor([7], dtype=torch.int32))
    expected = weights_of(theirs(model, torch.tensor(ROWS[:1])))
    torch.testing.assert_close(vector.double(), expected, rtol=0, atol=TOLERANCE)
