"""Pooling, dense layers, prompts and limits from sentence-transformers files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import BertForMaskedLM, BertModel

from export.bundle_writer import write_bundle
from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from model.bundle_files import read_manifest, read_parity
from model.config import PoolingKind
from tests.export.importers.support import edit_json, pooled, random_ids, randomise, save
from tests.export.importers.test_bert import LENGTHS, config, hidden, mask

MODES = {
    "cls_token": PoolingKind.CLS,
    "mean_tokens": PoolingKind.MEAN,
    "max_tokens": PoolingKind.MAX,
    "mean_sqrt_len_tokens": PoolingKind.MEAN_SQRT,
    "weightedmean_tokens": PoolingKind.WEIGHTED_MEAN,
    "lasttoken": PoolingKind.LAST,
}


def reference(mode: str, vectors: torch.Tensor) -> torch.Tensor:
    """The pooling of each row alone: ``[length, size]`` to ``[size]``."""
    ranks = torch.arange(1, len(vectors) + 1)[:, None]
    results: dict[str, torch.Tensor] = {
        "cls_token": vectors[0],
        "mean_tokens": vectors.mean(0),
        "max_tokens": vectors.amax(0),
        "mean_sqrt_len_tokens": vectors.sum(0) / len(vectors) ** 0.5,
        "weightedmean_tokens": (vectors * ranks).sum(0) / ranks.sum(),
        "lasttoken": vectors[-1],
    }
    return results[mode]


def pool_rows(mode: str, vectors: torch.Tensor) -> torch.Tensor:
    rows = [reference(mode, row[:n]) for row, n in zip(vectors, LENGTHS.tolist(), strict=True)]
    return torch.stack(rows)


def add_modules(folder: Path, *kinds: str, **pooling: object) -> None:
    """``modules.json`` with modules of ``kinds``, and a configuration of the pooling."""
    (folder / "1_Pooling").mkdir()
    edit_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=48, **pooling)
    rows = [
        {
            "type": f"sentence_transformers.models.{kind}",
            "path": "" if kind == "Transformer" else f"{index}_{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))


def add_dense(folder: Path, name: str, size: int, *, bias: bool, activation: str) -> Any:
    """A Dense module with random weights, as a folder and as a function."""
    generator = torch.Generator().manual_seed(size)
    inputs = 48 if name.startswith("2") else 40
    weights = {"linear.weight": 0.3 * torch.randn(size, inputs, generator=generator)}
    if bias:
        weights["linear.bias"] = torch.randn(size, generator=generator)
    (folder / name).mkdir()
    save_file(weights, folder / name / "model.safetensors")
    edit_json(
        folder / name / "config.json",
        in_features=inputs,
        out_features=size,
        bias=bias,
        activation_function=f"torch.nn.modules.{activation}",
    )
    function = getattr(torch.nn, activation.rpartition(".")[2])()
    return lambda x: function(functional.linear(x, *weights.values()))


@pytest.mark.parametrize("mode", MODES)
def test_pooling_matches_the_reference(tmp_path: Path, mode: str) -> None:
    model = randomise(BertModel(config()))
    save(model, tmp_path)
    flags = {f"pooling_mode_{name}": name == mode for name in MODES}
    add_modules(tmp_path, "Transformer", "Pooling", **flags)
    checkpoint = load_checkpoint(str(tmp_path))
    ids = random_ids(3, 7)
    expected = pool_rows(mode, hidden(model, ids))
    torch.testing.assert_close(pooled(checkpoint, ids, LENGTHS), expected, rtol=0, atol=1e-4)
    assert checkpoint.config.head.pooling == MODES[mode]


def test_dense_layers_prompts_and_limits_are_imported(tmp_path: Path) -> None:
    source = tmp_path / "source"
    model = randomise(BertModel(config(num_attention_heads=6)))
    save(model, source)
    kinds = ("Transformer", "Pooling", "Dense", "Dense", "Normalize")
    add_modules(source, *kinds, pooling_mode="lasttoken")
    first = add_dense(source, "2_Dense", 40, bias=True, activation="activation.Tanh")
    second = add_dense(source, "3_Dense", 24, bias=False, activation="linear.Identity")
    edit_json(
        source / "config_sentence_transformers.json",
        prompts={"query": "w3 w4 ", "document": ""},
        default_prompt_name="document",
    )
    edit_json(source / "sentence_bert_config.json", max_seq_length=12, do_lower_case=False)
    edit_json(source / "config.json", matryoshka_dimensions=[8, 16, 24])
    checkpoint = load_checkpoint(str(source))
    ids = random_ids(3, 7)
    expected = second(first(pool_rows("lasttoken", hidden(model, ids))))
    ours = pooled(checkpoint, ids, LENGTHS)
    torch.testing.assert_close(ours, functional.normalize(expected, dim=-1), rtol=0, atol=1e-4)
    path = write_bundle(checkpoint, tmp_path)
    manifest = read_manifest(path)
    assert manifest.max_input_tokens == 12
    assert manifest.embedding is not None
    assert manifest.embedding.size == 24
    assert manifest.embedding.truncations == (8, 16, 24)
    assert manifest.embedding.prompts == {"query": "w3 w4 ", "document": ""}
    assert manifest.embedding.default_prompt == "document"
    assert manifest.embedding.is_normalized
    shapes = {spec.name: spec.shape for spec in manifest.graphs["encode"].outputs}
    assert shapes == {"embeddings": ("batch", 24), "token_embeddings": ("batch", "length", 48)}
    assert read_parity(path).max_absolute_error < 1e-4


def test_modules_json_overrides_the_architecture(tmp_path: Path) -> None:
    model = randomise(BertModel(config()))
    save(model, tmp_path)
    add_modules(tmp_path, "Transformer", "Pooling", pooling_mode=["mean"])
    edit_json(tmp_path / "config.json", architectures=["BertForMaskedLM"])
    checkpoint = load_checkpoint(str(tmp_path))
    ids = random_ids(3, 7)
    expected = (hidden(model, ids) * mask()[:, :, None]).sum(1) / LENGTHS[:, None]
    torch.testing.assert_close(pooled(checkpoint, ids, LENGTHS), expected, rtol=0, atol=1e-4)


def _dense_with_residual(folder: Path) -> None:
    add_modules(folder, "Transformer", "Pooling", "Dense", pooling_mode="mean")
    add_dense(folder, "2_Dense", 48, bias=True, activation="activation.Tanh")
    edit_json(folder / "2_Dense" / "config.json", use_residual=True)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            lambda folder: add_modules(
                folder, "Transformer", "Pooling", "LSTM", pooling_mode="mean"
            ),
            "the modules Transformer, Pooling, LSTM; supported: Transformer",
        ),
        (
            lambda folder: add_modules(
                folder, "Transformer", "Pooling", pooling_mode=["mean", "cls"]
            ),
            "one pooling is supported",
        ),
        (
            lambda folder: add_modules(
                folder, "Transformer", "Pooling", pooling_mode="mean", include_prompt=False
            ),
            "include_prompt False",
        ),
        (_dense_with_residual, "use_residual True"),
        (
            lambda folder: edit_json(folder / "sentence_bert_config.json", do_lower_case=True),
            "do_lower_case True",
        ),
        (
            lambda folder: edit_json(
                folder / "sentence_bert_config.json", modality_config={"text": {}, "message": {}}
            ),
            "texts in a chat template",
        ),
    ],
)
def test_unsupported_configuration_is_rejected(tmp_path: Path, prepare: Any, message: str) -> None:
    save(randomise(BertModel(config())), tmp_path)
    prepare(tmp_path)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


def test_older_files_limit_texts_too(tmp_path: Path) -> None:
    save(randomise(BertModel(config())), tmp_path)
    edit_json(tmp_path / "sentence_roberta_config.json", max_seq_length=9)
    assert load_checkpoint(str(tmp_path)).max_input_tokens == 9


def test_missing_module_files_are_named(tmp_path: Path) -> None:
    save(randomise(BertForMaskedLM(config())), tmp_path)
    add_modules(tmp_path, "Transformer", "Pooling", pooling_mode="mean")
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(SourceError, match=r"1_Pooling/config.json: missing"):
        load_checkpoint(str(tmp_path))
