"""Which files of retrieval models are refused, and what the others say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM, BertModel

from export.bundle_writer import write_bundle
from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from model.bundle import EmbeddingKind, MultiVector, Precision, Task
from model.bundle_files import read_manifest, read_parity
from model.transformer import from_weights
from tests.export.importers.retrieval_files import (
    MASK,
    add_matrices,
    add_modules,
    add_tokenizer,
    dense_config,
    random_matrix,
)
from tests.export.importers.support import edit_json, randomise

SHAPE: dict[str, Any] = {
    "vocab_size": 63,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "attn_implementation": "eager",
}
PROMPTS = "config_sentence_transformers.json"
LIMITS = "sentence_bert_config.json"
MASK_MODULE = "2_MultiVectorMask"
METADATA = "artifact.metadata"


def save_pylate(folder: Path, **settings: Any) -> Path:
    randomise(BertModel(BertConfig(**SHAPE))).save_pretrained(folder)
    add_tokenizer(folder, "[Q] ", "[D] ")
    add_modules(folder, ("x.Transformer", {}), ("pylate.models.Dense.Dense", dense_config(32, 8)))
    add_matrices(folder, 1, **{"linear.weight": random_matrix(8, 32)})
    edit_json(folder / PROMPTS, model_type="ColBERT", query_length=12, document_length=20)
    edit_json(folder / PROMPTS, **settings)
    return folder


def save_multi_vector(folder: Path) -> Path:
    randomise(BertModel(BertConfig(**SHAPE))).save_pretrained(folder)
    add_tokenizer(folder, "[Q]")
    add_modules(
        folder,
        ("x.Transformer", {}),
        ("x.Dense", dense_config(32, 8, module_input_name="token_embeddings")),
        ("x.MultiVectorMask", {"skiplist_words": ["."], "skiplist_tasks": ["document"]}),
        ("x.Normalize", {"module_input_name": "token_embeddings"}),
    )
    add_matrices(folder, 1, **{"linear.weight": random_matrix(8, 32)})
    edit_json(folder / PROMPTS, model_type="MultiVectorEncoder", similarity_fn_name="maxsim")
    edit_json(folder / LIMITS, transformer_task="feature-extraction", query_length=16)
    return folder


def save_colbert(folder: Path) -> Path:
    model = randomise(BertModel(BertConfig(**SHAPE)))
    model.save_pretrained(folder)
    add_tokenizer(folder, "[unused0]", "[unused1]")
    weights = {f"bert.{name}": x for name, x in load_file(folder / "model.safetensors").items()}
    save_file(weights | {"linear.weight": random_matrix(8, 32)}, folder / "model.safetensors")
    edit_json(folder / "config.json", architectures=["HF_ColBERT"])
    edit_json(folder / METADATA, query_maxlen=12, doc_maxlen=20, dim=8)
    return folder


def save_sparse(folder: Path) -> Path:
    randomise(BertForMaskedLM(BertConfig(**SHAPE))).save_pretrained(folder)
    add_tokenizer(folder)
    add_modules(
        folder,
        ("x.Transformer", {}),
        ("x.SpladePooling", {"pooling_strategy": "max", "activation_function": "relu"}),
    )
    edit_json(folder / PROMPTS, model_type="SparseEncoder", similarity_fn_name="dot")
    edit_json(folder / LIMITS, transformer_task="fill-mask")
    edit_json(folder / "tokenizer_config.json", model_max_length=24)
    return folder


Case = tuple[Callable[[Path], Path], str, dict[str, Any], str]
UNSUPPORTED: list[Case] = [
    (save_sparse, "1_SpladePooling/config.json", {"pooling_strategy": "sum"}, "strategy 'sum'"),
    (save_sparse, "1_SpladePooling/config.json", {"activation_function": "tanh"}, "'tanh'"),
    (save_sparse, "config.json", {"architectures": ["BertModel"]}, "masked language model"),
    (save_sparse, LIMITS, {"transformer_task": "feature-extraction"}, "transformer_task"),
    (save_multi_vector, PROMPTS, {"similarity_fn_name": "meanmaxsim"}, "'meanmaxsim'"),
    (save_multi_vector, LIMITS, {"query_expansion": {"strategy": "min", "length": 9}}, "'min'"),
    (save_multi_vector, f"{MASK_MODULE}/config.json", {"skiplist_tasks": ["query"]}, "skiplist_t"),
    (save_multi_vector, f"{MASK_MODULE}/config.json", {"keep_only_token_ids": [3]}, "keep_only"),
    (save_multi_vector, "3_Normalize/config.json", {"module_input_name": None}, "normalizes"),
    (
        save_multi_vector,
        "1_Dense/config.json",
        {"module_input_name": "sentence_embedding"},
        "module_input_name 'sentence_embedding'",
    ),
    (save_colbert, METADATA, {"similarity": "l2"}, "similarity 'l2'"),
]
DAMAGED: list[Case] = [
    (save_pylate, PROMPTS, {"query_prefix": "[X] "}, r"no token '\[X\] '"),
    (save_pylate, PROMPTS, {"query_length": 3}, "3 tokens of a query; between 4 and 40"),
    (save_pylate, PROMPTS, {"query_length": 41}, "41 tokens of a query; between 4 and 40"),
    (save_pylate, PROMPTS, {"document_length": 0}, "document_length is 0"),
    (save_pylate, PROMPTS, {"skiplist_words": "."}, "skiplist_words is of type str"),
    (save_pylate, "tokenizer_config.json", {"mask_token": None}, "no mask token"),
    (save_colbert, METADATA, {"dim": 9}, "dim is 9, but vectors have 8"),
    (save_colbert, METADATA, {"query_token_id": "[unused9]"}, r"no token '\[unused9\]'"),
]


@pytest.mark.parametrize(("save", "file", "values", "message"), UNSUPPORTED)
def test_unsupported_files_are_refused(
    tmp_path: Path, save: Callable[[Path], Path], file: str, values: dict[str, Any], message: str
) -> None:
    edit_json(save(tmp_path) / file, **values)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(("save", "file", "values", "message"), DAMAGED)
def test_damaged_files_are_refused(
    tmp_path: Path, save: Callable[[Path], Path], file: str, values: dict[str, Any], message: str
) -> None:
    edit_json(save(tmp_path) / file, **values)
    with pytest.raises(SourceError, match=message):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("kind", ["Router", "Asym"])
def test_two_networks_are_refused(tmp_path: Path, kind: str) -> None:
    save_sparse(tmp_path)
    edit_json(tmp_path / PROMPTS, model_type=None)
    add_modules(tmp_path, (f"x.{kind}", {}))
    with pytest.raises(UnsupportedError, match=f"{kind}, which reads queries and documents"):
        load_checkpoint(str(tmp_path))


def test_masks_without_vectors_are_refused(tmp_path: Path) -> None:
    save_multi_vector(tmp_path)
    edit_json(tmp_path / LIMITS, query_expansion={"strategy": "fixed", "length": 16})
    load_checkpoint(str(tmp_path))
    rows = json.loads((tmp_path / "modules.json").read_text())
    kept = [row for row in rows if not row["type"].endswith("MultiVectorMask")]
    (tmp_path / "modules.json").write_text(json.dumps(kept))
    with pytest.raises(UnsupportedError, match="query_expansion without MultiVectorMask"):
        load_checkpoint(str(tmp_path))


def test_fixed_weights_of_queries_are_refused(tmp_path: Path) -> None:
    save_sparse(tmp_path)
    (tmp_path / "modules.json").unlink()
    (tmp_path / "idf.json").write_text("{}")
    with pytest.raises(UnsupportedError, match=r"idf\.json gives tokens of queries fixed weights"):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("save", [save_multi_vector, save_sparse])
def test_other_modules_are_refused(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    rows = json.loads((save(tmp_path) / "modules.json").read_text())
    rows.append({"type": "x.SparseAutoEncoder", "path": ""})
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(UnsupportedError, match="SparseAutoEncoder; supported for"):
        load_checkpoint(str(tmp_path))


def test_an_option_needs_a_masked_language_model(tmp_path: Path) -> None:
    save_colbert(tmp_path)
    with pytest.raises(UnsupportedError, match="--vectors sparse"):
        load_checkpoint(str(tmp_path), vectors=EmbeddingKind.SPARSE)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedError, match=r"--vectors: not for .*model\.gguf, a GGUF file"):
        load_checkpoint(str(tmp_path / "model.gguf"), vectors=EmbeddingKind.SPARSE)


def spec_of(folder: Path) -> MultiVector:
    embedding = load_checkpoint(str(folder)).embedding
    assert embedding is not None
    assert embedding.multi_vector is not None
    return embedding.multi_vector


def test_defaults_are_those_of_pylate(tmp_path: Path) -> None:
    save_pylate(tmp_path, query_length=None, document_length=None)
    spec = spec_of(tmp_path)
    assert spec == MultiVector(
        query_marker=61,
        document_marker=62,
        query_length=32,
        document_length=40,  # of 180, as many as the model has positions
        filler=MASK,
        skipped=(12, 13),  # the tokenizer knows only these of all punctuation
    )


def test_a_prompt_that_is_no_token_stays_a_prompt(tmp_path: Path) -> None:
    prompts = {"query": "[Q] ", "document": "w20 ", "title": "w21 w22 "}
    save_multi_vector(tmp_path)
    edit_json(tmp_path / PROMPTS, prompts=prompts, default_prompt_name="query")
    embedding = load_checkpoint(str(tmp_path)).embedding
    assert embedding is not None
    assert embedding.multi_vector is not None
    assert embedding.multi_vector.query_marker == 61
    assert embedding.multi_vector.document_marker is None
    assert embedding.prompts == {"document": "w20 ", "title": "w21 w22 "}
    assert embedding.default_prompt is None
    assert embedding.multi_vector.filler is None
    assert embedding.multi_vector.query_length == 16
    assert embedding.multi_vector.document_length == 40


def test_a_residual_is_part_of_its_matrix(tmp_path: Path) -> None:
    save_pylate(tmp_path)
    dense = "pylate.models.Dense.Dense"
    add_modules(
        tmp_path,
        ("x.Transformer", {}),
        (dense, dense_config(32, 32, use_residual=True)),
        (dense, dense_config(32, 8, use_residual=True)),
    )
    first, second, residual = (
        random_matrix(size, 32, seed) for size, seed in ((32, 1), (8, 2), (8, 3))
    )
    add_matrices(tmp_path, 1, **{"linear.weight": first})
    add_matrices(tmp_path, 2, **{"linear.weight": second, "residual.weight": residual})
    checkpoint = load_checkpoint(str(tmp_path))
    hidden = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(4))
    model = from_weights(checkpoint.config, checkpoint.weights)
    actual = model.pool(hidden, torch.tensor([5]))
    x = hidden @ first.T + hidden
    expected = functional.normalize(x @ second.T + x @ residual.T, dim=-1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_similarity_decides_whether_a_dense_model_reranks(tmp_path: Path) -> None:
    randomise(BertModel(BertConfig(**SHAPE))).save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    base = "sentence_transformers"
    add_modules(
        tmp_path,
        (f"{base}.base.modules.transformer.Transformer", {}),
        (f"{base}.sentence_transformer.modules.pooling.Pooling", {"pooling_mode": "mean"}),
        (f"{base}.base.modules.normalize.Normalize", {"module_input_name": "sentence_embedding"}),
    )
    edit_json(tmp_path / LIMITS, transformer_task="feature-extraction")
    edit_json(tmp_path / "tokenizer_config.json", model_max_length=24)
    edit_json(tmp_path / PROMPTS, similarity_fn_name="cosine", prompts={"query": "w20 "})
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.tasks == (Task.EMBED, Task.RERANK)
    assert checkpoint.max_input_tokens == 24
    edit_json(tmp_path / PROMPTS, similarity_fn_name="euclidean")
    assert load_checkpoint(str(tmp_path)).tasks == (Task.EMBED,)


@pytest.mark.parametrize("save", [save_pylate, save_sparse], ids=["multi_vector", "sparse"])
def test_bundles_say_how_texts_are_read(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    checkpoint = load_checkpoint(str(save(tmp_path / "source")))
    for precision in (Precision.FP32, Precision.INT8):
        path = write_bundle(
            checkpoint, tmp_path, version=precision, precision=precision, accept_loss=True
        )
        manifest = read_manifest(path)
        assert manifest.embedding == checkpoint.embedding
        assert manifest.max_input_tokens == (24 if save is save_sparse else None)
        inputs = [spec.name for spec in manifest.graphs["encode"].inputs]
        assert ("attended_lengths" in inputs) == (save is save_pylate)
        assert "attend_encode" in manifest.graphs
        assert read_parity(path).max_absolute_error < 1e-4
