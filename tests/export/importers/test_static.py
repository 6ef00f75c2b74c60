"""Static embeddings: graphs against the libraries' arithmetic, and files that are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from export.bundle_writer import write_bundle
from export.encoding import EncoderInputs, encode_in_graph
from export.errors import SourceError, UnsupportedError
from export.runtime import Session
from export.sources import load_checkpoint
from model.bundle import Precision, StaticTokens, Task
from model.bundle_files import read_manifest, read_parity
from tests import static_models
from tests.export.importers.retrieval_files import dense_config
from tests.export.importers.support import edit_json
from tests.static_models import MODEL2VEC, QUANTIZED, SENTENCES, SIZE, TEXTS, reference

VOCABULARY = 30_522
UNKNOWN_ID, MEDIAN_LENGTH = 100, 6


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return static_models.sources(tmp_path_factory.mktemp("static"))


@pytest.fixture
def copied(sources: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: shutil.copytree(sources[name], tmp_path / name)


@pytest.mark.parametrize("name", [MODEL2VEC, QUANTIZED, SENTENCES])
def test_graph_returns_the_mean_of_rows(
    sources: dict[str, Path], tmp_path: Path, name: str
) -> None:
    bundle = write_bundle(load_checkpoint(str(sources[name])), tmp_path)
    manifest = read_manifest(bundle)
    tokenizer: Any = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    rows = [tokenizer.encode(text).ids for text in TEXTS]
    assert manifest.static_tokens is not None
    kept = [[id_ for id_ in row if id_ != manifest.static_tokens.ignored] for row in rows]
    kept.append([manifest.static_tokens.blank])
    found = encode_in_graph(Session(bundle, manifest.graphs["encode"]), EncoderInputs(kept, None))
    for text, (vector, of_tokens) in zip((*TEXTS, ""), found, strict=True):
        np.testing.assert_allclose(vector, reference(sources[name], text), atol=1e-5, rtol=1e-5)
        expected = static_models.tokens_of(sources[name], text)
        np.testing.assert_allclose(of_tokens[: len(expected)], expected, atol=1e-5)


def test_reads_what_each_library_writes(sources: dict[str, Path]) -> None:
    model2vec, quantized, sentences = (
        load_checkpoint(str(sources[name])) for name in (MODEL2VEC, QUANTIZED, SENTENCES)
    )
    tokens = StaticTokens(blank=VOCABULARY, ignored=UNKNOWN_ID, characters_per_token=MEDIAN_LENGTH)
    for checkpoint, length in ((model2vec, 512), (quantized, static_models.MAX_LENGTH)):
        assert checkpoint.embedding is not None
        assert checkpoint.embedding.static_tokens == tokens
        assert checkpoint.max_input_tokens == length
    embedding = sentences.embedding
    assert embedding is not None
    assert embedding.static_tokens == StaticTokens(blank=VOCABULARY)
    assert sentences.max_input_tokens == static_models.SENTENCES_LENGTH
    assert embedding.prompts == static_models.PROMPTS
    assert [
        x.embedding.is_normalized for x in (model2vec, quantized, sentences) if x.embedding
    ] == [
        True,
        False,
        False,
    ]
    for checkpoint in (model2vec, quantized, sentences):
        assert checkpoint.tasks == (Task.EMBED, Task.RERANK)
        assert checkpoint.config.num_layers == 0
        assert not checkpoint.weights["embedding.tokens.weight"][-1].any()


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4, Precision.FP16])
def test_every_precision_has_figures(
    sources: dict[str, Path], tmp_path: Path, precision: Precision
) -> None:
    bundle = write_bundle(load_checkpoint(str(sources[MODEL2VEC])), tmp_path, precision=precision)
    fidelity = read_parity(bundle).fidelity
    assert fidelity is not None
    assert 0.99 < (fidelity.min_cosine or 0) <= (fidelity.mean_cosine or 0) <= 1
    whole = write_bundle(load_checkpoint(str(sources[MODEL2VEC])), tmp_path, version="2")
    sizes = [(path / "encode.onnx.data").stat().st_size for path in (bundle, whole)]
    assert sizes[0] < 0.6 * sizes[1]


def test_sentence_transformers_with_dense_layers(copied: Callable[[str], Path]) -> None:
    folder = copied(SENTENCES)
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(8, SIZE, generator=generator)
    for name in ("1_Dense", "2_Normalize"):
        (folder / name).mkdir()
    save_file({"linear.weight": matrix.numpy()}, folder / "1_Dense" / "model.safetensors")
    edit_json(folder / "1_Dense" / "config.json", **dense_config(SIZE, 8))
    modules = json.loads((folder / "modules.json").read_text())
    modules += [
        {"type": f"x.{kind}", "path": f"{index}_{kind}"}
        for index, kind in ((1, "Dense"), (2, "Normalize"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.embedding is not None
    assert (checkpoint.embedding.size, checkpoint.embedding.is_normalized) == (8, True)
    weight = checkpoint.weights["head.dense.0.linear.weight"]
    torch.testing.assert_close(weight, matrix.T.contiguous())


def test_texts_are_cut_only_as_the_files_say(copied: Callable[[str], Path]) -> None:
    folder = copied(MODEL2VEC)
    config = folder / "config.json"
    config.write_text('{"model_type": "model2vec", "normalize": true, "max_length": null}')
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.max_input_tokens is None
    assert checkpoint.embedding is not None
    assert checkpoint.embedding.static_tokens == StaticTokens(blank=VOCABULARY, ignored=UNKNOWN_ID)
    other = copied(SENTENCES)
    edit_json(other / "0_StaticEmbedding" / "tokenizer.json", truncation=None)
    assert load_checkpoint(str(other)).max_input_tokens is None


def test_modules_need_no_subfolder(copied: Callable[[str], Path]) -> None:
    folder = copied(SENTENCES)
    for file in (folder / "0_StaticEmbedding").iterdir():
        file.rename(folder / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([{**modules[0], "path": ""}]))
    assert load_checkpoint(str(folder)).max_input_tokens == static_models.SENTENCES_LENGTH


def _weights(**changes: Any) -> Callable[[Path], None]:
    """Replaces weights of the folder's file; None removes one."""

    def change(folder: Path) -> None:
        file = next(folder.rglob("model.safetensors"))
        weights = {**load_file(file), **changes}
        save_file({key: x for key, x in weights.items() if x is not None}, file)

    return change


def _modules(*kinds: str) -> Callable[[Path], None]:
    rows = [{"type": f"x.{kind}", "path": f"{index}_{kind}"} for index, kind in enumerate(kinds)]
    return lambda folder: _write(folder / "modules.json", rows)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", **values)


def _pickle(folder: Path) -> None:
    part = folder / "0_StaticEmbedding"
    (part / "model.safetensors").unlink()
    (part / "pytorch_model.bin").write_bytes(b"\x80")


def _touch(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).touch()


ONES = np.ones((VOCABULARY, SIZE), np.float32)
DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "few rows": (MODEL2VEC, _weights(embeddings=ONES[:-1]), "the id 30521, but there are 30521"),
    "no matrix": (MODEL2VEC, _weights(embeddings=ONES[0]), r"the rows have the shape \[24\]"),
    "empty": (MODEL2VEC, _weights(embeddings=ONES[:, :0]), r"the shape \[30522, 0\]"),
    "others": (MODEL2VEC, _weights(bias=ONES), "the weights bias, embeddings; expected"),
    "no rows": (SENTENCES, _weights(**{"embedding.weight": None, "x": ONES}), "the weights x"),
    "few mapped": (QUANTIZED, _weights(mapping=np.zeros(9, int)), "weights has the shape"),
    "mapped beyond": (
        QUANTIZED,
        _weights(mapping=np.full(VOCABULARY, static_models.NUM_ROWS)),
        "numbers of rows beyond 500",
    ),
    "mapped before": (QUANTIZED, _weights(mapping=np.full(VOCABULARY, -1)), "rows beyond"),
    "mapped to fractions": (QUANTIZED, _weights(mapping=ONES[:, 0]), "not a row for each"),
    "few factors": (QUANTIZED, _weights(weights=ONES[:5, 0]), r"the shape \[5\] for 30522"),
    "no tokens": (MODEL2VEC, _config(max_length=0), "max_length is 0"),
    "negative": (MODEL2VEC, _config(max_length=-1), "max_length is -1"),
    "outside": (
        SENTENCES,
        lambda folder: _write(
            folder / "modules.json", [{"type": "x.StaticEmbedding", "path": "../x"}]
        ),
        "../x is not a folder in this folder",
    ),
    "no tokenizer": (
        MODEL2VEC,
        lambda folder: (folder / "tokenizer.json").unlink(),
        "tokenizer.json: No such file",
    ),
}
UNSUPPORTED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "classifier": (MODEL2VEC, _touch("head.safetensors"), "head.safetensors: classifiers on"),
    "older classifier": (MODEL2VEC, _touch("pipeline.skops"), "pipeline.skops: classifiers on"),
    "modules": (
        SENTENCES,
        _modules("StaticEmbedding", "LSTM"),
        "the modules StaticEmbedding, LSTM",
    ),
    "order": (
        SENTENCES,
        _modules("StaticEmbedding", "Normalize", "Dense"),
        "Normalize, Dense; sup",
    ),
    "dense": (MODEL2VEC, _modules("StaticEmbedding", "Dense"), "StaticEmbedding, Dense; supported"),
    "left": (
        SENTENCES,
        lambda folder: edit_json(
            folder / "0_StaticEmbedding" / "tokenizer.json",
            truncation={"direction": "Left", "max_length": 9},
        ),
        "direction 'Left' is not supported",
    ),
    "pickle": (SENTENCES, _pickle, "pytorch_model.bin: the weights are a pickle"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_refuses_damaged_files(copied: Callable[[str], Path], damage: str) -> None:
    name, change, reason = DAMAGES[damage]
    folder = copied(name)
    change(folder)
    with pytest.raises(SourceError, match=reason):
        load_checkpoint(str(folder))


@pytest.mark.parametrize("feature", UNSUPPORTED)
def test_refuses_what_is_not_supported(copied: Callable[[str], Path], feature: str) -> None:
    name, change, reason = UNSUPPORTED[feature]
    folder = copied(name)
    change(folder)
    with pytest.raises(UnsupportedError, match=reason):
        load_checkpoint(str(folder))
