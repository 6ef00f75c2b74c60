"""M3-Embedding: the graph against published formulas, and files that are refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from export.bundle_writer import write_bundle
from export.encoding import EncoderInputs, encode_in_graph
from export.errors import FidelityError, SourceError, UnsupportedError
from export.fidelity.limits import LIMITS, exceeded_limits
from export.fidelity.measure import figures
from export.runtime import Session
from export.sources import load_checkpoint
from model.bundle import MANIFEST_FILE, EmbeddingKind, Fidelity, Precision
from model.bundle_files import read_manifest, read_parity
from model.config import PoolingKind
from tests import heads, m3_models
from tests.export.importers.support import edit_json
from tests.m3_models import SIZE, TOKEN_SIZE, ids_of, reference, save_source

TEXTS = (
    "Paris is the capital of France, isn't it?",
    "a",
    "the dog and the [MASK] and the dog [UNK]",
    "Ángela met études 🙂 in 東京.",
)
SPARSE_FILE, VECTORS_FILE = "sparse_linear.pt", "colbert_linear.pt"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_source(tmp_path_factory.mktemp("m3"))


@pytest.fixture
def copied(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source, tmp_path / "source")


def test_graph_returns_what_the_formulas_give(source: Path, tmp_path: Path) -> None:
    bundle = write_bundle(load_checkpoint(str(source)), tmp_path)
    manifest = read_manifest(bundle)
    assert manifest.embedding is not None
    assert manifest.embedding.kinds == tuple(EmbeddingKind)
    session = Session(bundle, manifest.graphs["encode"])
    rows = [ids_of(text) for text in TEXTS]
    names = [tensor.name for tensor in session.graph.outputs]
    found = encode_in_graph(session, EncoderInputs(rows, None))
    excluded = manifest.embedding.token_weights.excluded  # type: ignore[union-attr]
    for text, ids, outputs in zip(TEXTS, rows, found, strict=True):
        expected, named = reference(text), dict(zip(names, outputs, strict=True))
        np.testing.assert_allclose(named["embeddings"], expected.dense, atol=2e-6)
        np.testing.assert_allclose(named["multi_vectors"][1:], expected.vectors, atol=2e-6)
        weights = np.zeros(len(expected.weights), np.float32)
        np.maximum.at(weights, ids, named["sparse_weights"])
        assert all(weights[list(set(ids).intersection(excluded))] > 0), "left to the server"
        weights[list(excluded)] = 0
        np.testing.assert_allclose(weights, expected.weights, atol=2e-6)
        assert np.count_nonzero(weights) > len(set(ids)) // 4


def test_int8_has_figures_of_each_kind(source: Path, tmp_path: Path) -> None:
    bundle = write_bundle(load_checkpoint(str(source)), tmp_path, precision=Precision.INT8)
    fidelity = read_parity(bundle).fidelity
    assert fidelity is not None
    others = fidelity.other_vectors or {}
    assert others.keys() == {"sparse", "multi_vector"}
    dense = (fidelity.min_cosine or 0.0, fidelity.mean_cosine or 0.0)
    for lowest, mean in (dense, *((each.min_cosine, each.mean_cosine) for each in others.values())):
        assert 0.9 < lowest < mean < 1
    assert "mean cosine of sparse" in {name.replace("_", " ") for name in figures(fidelity)}
    assert exceeded_limits(fidelity, LIMITS[Precision.INT8]) == ()
    limits = replace(LIMITS[Precision.INT8], mean_cosine=others["multi_vector"].mean_cosine + 1e-6)
    found = exceeded_limits(fidelity, limits)
    assert any(reason.startswith("mean_cosine of multi_vector is 0.") for reason in found)


def test_damaged_maps_are_too_great_a_loss(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = replace(LIMITS[Precision.INT8], mean_cosine=0.99999, relative_error=1.0)
    monkeypatch.setitem(LIMITS, Precision.INT8, strict)
    with pytest.raises(FidelityError, match="mean_cosine of sparse"):
        write_bundle(load_checkpoint(str(source)), tmp_path, precision=Precision.INT8)


def test_other_bundles_have_no_new_fields(tmp_path: Path) -> None:
    heads.write_bundle_of(tmp_path, "embedder")
    text = (tmp_path / "embedder" / "1" / MANIFEST_FILE).read_text()
    assert "token_weights" not in text
    assert "token_vectors" not in text
    assert "static_tokens" not in text
    assert b"other_vectors" not in msgspec.json.encode(Fidelity(num_texts=1))


def test_special_tokens_have_no_weight(copied: Path) -> None:
    def excluded() -> tuple[int, ...]:
        embedding = load_checkpoint(str(copied)).embedding
        assert embedding is not None
        assert embedding.token_weights
        return embedding.token_weights.excluded

    assert excluded() == (0, 100, 101, 102)
    edit_json(copied / "tokenizer_config.json", unk_token=None, pad_token="not a token")
    assert excluded() == (101, 102)


def test_without_modules_it_is_as_flag_embedding_reads_it(copied: Path) -> None:
    (copied / "modules.json").unlink()
    checkpoint = load_checkpoint(str(copied))
    head, embedding = checkpoint.config.head, checkpoint.embedding
    assert (head.pooling, head.normalize, head.sparse) == (PoolingKind.CLS, True, True)
    assert head.multi_vector is not None
    assert head.multi_vector.size == TOKEN_SIZE
    assert embedding is not None
    assert (embedding.pooling, embedding.is_normalized) == (PoolingKind.CLS, True)


def test_without_the_maps_it_is_a_dense_model(copied: Path) -> None:
    for name in (SPARSE_FILE, VECTORS_FILE):
        (copied / name).unlink()
    checkpoint = load_checkpoint(str(copied))
    assert checkpoint.embedding is not None
    assert checkpoint.embedding.kinds == (EmbeddingKind.DENSE,)
    assert not checkpoint.config.head.sparse


class _Calls:
    def __reduce__(self) -> Any:
        return (open, (str(Path.cwd() / "called"), "w"))


def _saved(value: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(value, path)


def _state(outputs: int, inputs: int) -> Any:
    return nn.Linear(inputs, outputs).state_dict()


DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "one file": (SPARSE_FILE, Path.unlink, f"no {SPARSE_FILE}; M3-Embedding has"),
    "other file": (VECTORS_FILE, Path.unlink, f"no {VECTORS_FILE}; M3-Embedding has"),
    "empty": (SPARSE_FILE, lambda path: path.write_bytes(b""), "not the weights of a linear map"),
    "text": (VECTORS_FILE, lambda path: path.write_text("x" * 99), "not the weights of a linear"),
    "cut short": (
        VECTORS_FILE,
        lambda path: path.write_bytes(path.read_bytes()[:-300]),
        "not the weights of a linear map",
    ),
    "not a dictionary": (SPARSE_FILE, _saved([1.0]), "not a dictionary of weight and bias"),
    "no bias": (SPARSE_FILE, _saved({"weight": torch.ones(1, SIZE)}), "not a dictionary of"),
    "numbers": (SPARSE_FILE, _saved({"weight": 1.0, "bias": 2.0}), "are not tensors"),
    "more weights": (SPARSE_FILE, _saved(_state(2, SIZE)), "not one weight for each token"),
    "other model": (VECTORS_FILE, _saved(_state(8, SIZE + 1)), "for vectors of 32"),
    "no vectors": (VECTORS_FILE, _saved(_state(0, SIZE)), "no numbers"),
    "integers": (
        VECTORS_FILE,
        _saved({"weight": torch.ones(8, SIZE, dtype=torch.int32), "bias": torch.ones(8)}),
        "are not floating-point numbers",
    ),
    "vectors": (SPARSE_FILE, _saved({"weight": torch.ones(SIZE), "bias": torch.ones(1)}), "for v"),
    "large": (SPARSE_FILE, lambda path: _grow(path, 1 << 30), "more than 256 MiB"),
}


def _grow(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("damage", DAMAGES)
def test_refuses_other_files(copied: Path, damage: str) -> None:
    name, change, reason = DAMAGES[damage]
    change(copied / name)
    with pytest.raises(SourceError, match=reason):
        load_checkpoint(str(copied))


def test_calls_nothing_that_a_file_names(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copied)
    torch.save({"weight": _Calls(), "bias": torch.ones(1)}, copied / SPARSE_FILE)
    with pytest.raises(SourceError, match="not the weights of a linear map"):
        load_checkpoint(str(copied))
    assert not (copied / "called").exists()


def test_conversion_is_only_of_the_encoders_weights(copied: Path) -> None:
    torch.save(m3_models.model().state_dict(), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    with pytest.raises(UnsupportedError) as caught:
        load_checkpoint(str(copied))
    message = str(caught.value)
    assert "pytorch_model.bin: the weights are a pickle" in message
    assert "colbert_linear" not in message
