"""A vector for each token, of every encoder family and format of checkpoints.

The reference is transformers' model, run on each row alone with the attention mask that ColBERT and
PyLate give it, and the formula of the projection.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from export.checkpoint import Checkpoint
from export.encoding import EncoderInputs, encode_in_graph
from export.errors import UnsupportedError
from export.graphs import export_graphs
from export.runtime import Session
from export.sources import load_checkpoint
from model.bundle import Task
from model.late_interaction import document_ids, kept_tokens, query_ids
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.export.importers.retrieval_files import (
    CLS,
    COMMA,
    MASK,
    POINT,
    SEP,
    SKIPPED,
    add_matrices,
    add_modules,
    add_tokenizer,
    dense_config,
    random_matrix,
)
from tests.export.importers.support import edit_json, randomise
from tests.families.encoders import SMALL, with_fixed_sinusoids
from tests.families.test_distilbert import SMALL as DISTILBERT
from tests.families.test_encoder_heads import CHANGES

TOLERANCE = 1e-4
SIZE = 16
QUERY_LENGTH, DOCUMENT_LENGTH = 12, 9
QUERIES = ("w20 w21 .", "w22", " ".join(f"w{index}" for index in range(20, 40)))
DOCUMENTS = ("w30 , w31 .", "w32", " . ".join(f"w{index}" for index in range(20, 40)))
# They change what a token that nobody attends to sees, or read it by a convolution.
HIDING = ("ConvBert", "Deberta", "DebertaV2", "Longformer")
MARKS = {"query": "[Q] ", "document": "[D] "}


def make(family: str) -> Any:
    shape = DISTILBERT if family == "DistilBert" else SMALL
    # Two tokens more than the vocabulary, for the marks.
    config = getattr(transformers, f"{family}Config")(
        **{**shape, **CHANGES[family], "vocab_size": 63}
    )
    model = getattr(transformers, f"{family}Model")(config)
    if family == "RoFormer":
        with_fixed_sinusoids(model)
    return randomise(model)


def add_pylate(folder: Path, matrix: Tensor, **settings: Any) -> None:
    """The files of PyLate 1.6."""
    add_tokenizer(folder, *MARKS.values())
    add_modules(
        folder,
        ("sentence_transformers.models.Transformer", {}),
        ("pylate.models.Dense.Dense", dense_config(*matrix.T.shape, use_residual=False)),
    )
    add_matrices(folder, 1, **{"linear.weight": matrix})
    config = {
        "model_type": "ColBERT",
        "prompts": {},
        "similarity_fn_name": "MaxSim",
        "query_prefix": MARKS["query"],
        "document_prefix": MARKS["document"],
        "query_length": QUERY_LENGTH,
        "document_length": DOCUMENT_LENGTH,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(SKIPPED),
        "do_query_expansion": True,
    }
    edit_json(folder / "config_sentence_transformers.json", **config | settings)


def add_sentence_transformers(folder: Path, matrix: Tensor) -> None:
    """The files of sentence-transformers 6.2."""
    add_tokenizer(folder, *(mark.strip() for mark in MARKS.values()))
    base = "sentence_transformers.base.modules"
    add_modules(
        folder,
        (f"{base}.transformer.Transformer", {}),
        (
            f"{base}.dense.Dense",
            dense_config(*matrix.T.shape, module_input_name="token_embeddings"),
        ),
        (
            "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
            {"skiplist_words": list(SKIPPED), "skiplist_tasks": ["document"]},
        ),
        (f"{base}.normalize.Normalize", {"module_input_name": "token_embeddings"}),
    )
    add_matrices(folder, 1, **{"linear.weight": matrix})
    edit_json(
        folder / "sentence_bert_config.json",
        transformer_task="feature-extraction",
        document_length=DOCUMENT_LENGTH,
        query_expansion={"strategy": "fixed", "attend": False, "length": QUERY_LENGTH},
    )
    edit_json(
        folder / "config_sentence_transformers.json",
        model_type="MultiVectorEncoder",
        prompts=MARKS,
        similarity_fn_name="maxsim",
    )


def add_colbert(folder: Path, matrix: Tensor) -> None:
    """The files of ColBERT: the projection is among the model's weights."""
    add_tokenizer(folder, "[unused0]", "[unused1]")
    weights = load_file(folder / "model.safetensors")
    named = {f"bert.{name}": weight for name, weight in weights.items()}
    save_file({**named, "linear.weight": matrix}, folder / "model.safetensors")
    edit_json(folder / "config.json", architectures=["HF_ColBERT"])
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_maxlen": QUERY_LENGTH,
        "doc_maxlen": DOCUMENT_LENGTH,
        "dim": SIZE,
        "similarity": "cosine",
        "mask_punctuation": True,
        "attend_to_mask_tokens": False,
    }
    (folder / "artifact.metadata").write_text(json.dumps(metadata))


FORMATS: dict[str, Callable[[Path, Tensor], None]] = {
    "PyLate": add_pylate,
    "sentence-transformers": add_sentence_transformers,
    "ColBERT": add_colbert,
}


def cut_with_marker(tokenizer: Tokenizer, text: str, marker: str, length: int) -> list[int]:
    """A text's ids, cut by the tokenizer, with the marker as the second."""
    tokenizer.enable_truncation(length - 1)
    ids = tokenizer.encode(text).ids
    index = tokenizer.token_to_id(marker)
    assert index is not None
    return [ids[0], index, *ids[1:]]


@torch.no_grad()
def vectors(model: Any, ids: list[int], num_attended: int, matrix: Tensor) -> Array:
    """Vectors of one row, ``[length, size]``, of L2 norm 1."""
    mask = (torch.arange(len(ids)) < num_attended).long()
    hidden = model(input_ids=torch.tensor([ids]), attention_mask=mask[None]).last_hidden_state[0]
    result: Array = functional.normalize(hidden @ matrix.T, dim=-1).numpy()
    return result


def expected_vectors(
    model: Any, folder: Path, matrix: Tensor, marks: tuple[str, str], *, attends: bool, fills: bool
) -> list[Array]:
    """Returns the vectors of the queries, then those of the documents."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    results = []
    for text in QUERIES:
        ids = cut_with_marker(tokenizer, text, marks[0], QUERY_LENGTH)
        filled = ids + [MASK] * (QUERY_LENGTH - len(ids)) if fills else ids
        results.append(vectors(model, filled, len(filled) if attends else len(ids), matrix))
    for text in DOCUMENTS:
        ids = cut_with_marker(tokenizer, text, marks[1], DOCUMENT_LENGTH)
        kept = [id_ not in (POINT, COMMA) for id_ in ids]
        results.append(vectors(model, ids, len(ids), matrix)[kept])
    return results


def check(checkpoint: Checkpoint, folder: Path, expected: list[Array]) -> None:
    """Compares the graph with ``expected``: in mixed batches, with and without native kernels."""
    assert checkpoint.embedding is not None
    assert checkpoint.embedding.multi_vector is not None
    assert checkpoint.embedding.prompts == {}
    assert checkpoint.tasks == (Task.EMBED, Task.RERANK)
    spec = checkpoint.embedding.multi_vector
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    queries = [query_ids(tokenizer.encode(text).ids, spec) for text in QUERIES]
    documents = [document_ids(tokenizer.encode(text).ids, spec) for text in DOCUMENTS]
    rows = [ids for ids, _ in queries] + documents
    attended = [number for _, number in queries] + [len(ids) for ids in documents]
    kept = [list(range(len(ids))) for ids, _ in queries]
    kept += [kept_tokens(ids, spec) for ids in documents]
    segments = (
        [[0] * len(row) for row in rows] if checkpoint.config.embedding.num_segments else None
    )
    graphs = export_graphs(checkpoint.config, checkpoint.weights, folder)
    inputs = EncoderInputs(rows, segments, attended=attended)
    for session in (Session(folder, graphs["encode"]), NativeSession(folder, graphs["encode"])):
        batched = encode_in_graph(session, inputs)
        for index, (row, at) in enumerate(zip(expected, kept, strict=True)):
            np.testing.assert_allclose(batched[index][0][at], row, atol=TOLERANCE)
            (alone,) = encode_in_graph(session, inputs.part(index, index + 1))
            np.testing.assert_allclose(alone[0], batched[index][0], atol=1e-6)


class NativeSession(Session):
    """The graph as the server runs it."""

    def __init__(self, folder: Path, graph: Any) -> None:
        self.graph = graph
        self.loaded = OrtBackend("cpu", 1).load(folder / graph.file, ()).bind({})

    def run(self, **inputs: Any) -> Any:
        dtypes = {spec.name: spec.dtype.value for spec in self.graph.inputs}
        feed = {name: np.asarray(x, dtypes[name]) for name, x in inputs.items()}
        outputs = self.loaded.run(feed)
        return {spec.name: np.array(outputs[spec.name]) for spec in self.graph.outputs}


@pytest.mark.parametrize("family", [name for name in CHANGES if name not in HIDING])
def test_unattended_masks_match_transformers(family: str, tmp_path: Path) -> None:
    source, model, matrix = tmp_path / "source", make(family), random_matrix(SIZE, 64)
    model.save_pretrained(source)
    add_pylate(source, matrix)
    expected = expected_vectors(model, source, matrix, ("[Q] ", "[D] "), attends=False, fills=True)
    check(load_checkpoint(str(source)), tmp_path, expected)


@pytest.mark.parametrize("family", HIDING)
def test_families_that_hide_tokens_are_refused(family: str, tmp_path: Path) -> None:
    make(family).save_pretrained(tmp_path)
    add_pylate(tmp_path, random_matrix(SIZE, 64))
    with pytest.raises(UnsupportedError, match="masks that fill up queries and are not attended"):
        load_checkpoint(str(tmp_path))
    edit_json(tmp_path / "config_sentence_transformers.json", attend_to_expansion_tokens=True)
    load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("fills", [False, True])
def test_attended_masks_or_none_match_transformers(tmp_path: Path, *, fills: bool) -> None:
    source, model, matrix = tmp_path / "source", make("Bert"), random_matrix(SIZE, 64)
    model.save_pretrained(source)
    add_pylate(source, matrix, attend_to_expansion_tokens=True, do_query_expansion=fills)
    expected = expected_vectors(model, source, matrix, ("[Q] ", "[D] "), attends=fills, fills=fills)
    checkpoint = load_checkpoint(str(source))
    assert checkpoint.config.encoder is not None
    assert not checkpoint.config.encoder.has_unattended
    check(checkpoint, tmp_path, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_match_transformers(name: str, tmp_path: Path) -> None:
    source, model, matrix = tmp_path / "source", make("Bert"), random_matrix(SIZE, 64)
    model.save_pretrained(source)
    FORMATS[name](source, matrix)
    marks = {
        "PyLate": ("[Q] ", "[D] "),
        "sentence-transformers": ("[Q]", "[D]"),
        "ColBERT": ("[unused0]", "[unused1]"),
    }
    expected = expected_vectors(model, source, matrix, marks[name], attends=False, fills=True)
    check(load_checkpoint(str(source)), tmp_path, expected)


def test_texts_are_framed_as_the_reference_frames_them(tmp_path: Path) -> None:
    make("Bert").save_pretrained(tmp_path)
    add_pylate(tmp_path, random_matrix(SIZE, 64))
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.embedding is not None
    spec = checkpoint.embedding.multi_vector
    assert spec is not None
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    query, num_attended = query_ids(tokenizer.encode("w20").ids, spec)
    assert query == [CLS, 61, 24, SEP, *[MASK] * 8]
    assert num_attended == 4
    assert document_ids(tokenizer.encode(DOCUMENTS[2]).ids, spec)[-1] == SEP
