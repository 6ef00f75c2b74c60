"""Sparse and multi-vector embedding models: the random BERTs of :mod:`tests.heads` with a head."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from export.sources import load_checkpoint
from model.bundle import Embedding, EmbeddingKind, MultiVector, Task
from model.config import DenseConfig, HeadConfig, HeadKind
from tests import heads
from tests.export.importers.support import edit_json

SPARSE, MULTI_VECTOR, UNFILLED = "splade", "colbert", "colbert-unfilled"
NAMES = (SPARSE, MULTI_VECTOR, UNFILLED)
SIZE = 16
QUERY_LENGTH, DOCUMENT_LENGTH = 12, 40
# Unused tokens of the vocabulary, which BERT's tokenizer writes in brackets.
QUERY_MARKER, DOCUMENT_MARKER, MASK = 1, 2, 103
PROMPTS = {"query": "search for ", "document": ""}
UNFILLED_PROMPT = "a text: "  # before documents


def _base(name: str, folder: Path) -> Checkpoint:
    """The checkpoint of one of :data:`tests.heads.NAMES`."""
    heads.model(name).save_pretrained(folder)
    shutil.copy(heads.tokenizer_folder() / "tokenizer.json", folder)
    edit_json(folder / "tokenizer_config.json", mask_token="[MASK]")
    return load_checkpoint(str(folder))


def _sparse(folder: Path) -> Checkpoint:
    base = _base("filler", folder)
    head = msgspec.structs.replace(base.config.head, kind=HeadKind.SPARSE_EMBEDDING)
    size = base.config.vocabulary_size
    return replace(
        base,
        config=msgspec.structs.replace(base.config, head=head),
        tasks=(Task.EMBED, Task.RERANK),
        embedding=Embedding(
            kind=EmbeddingKind.SPARSE, size=size, is_normalized=False, prompts=PROMPTS
        ),
    )


def _multi_vector(folder: Path, spec: MultiVector) -> Checkpoint:
    base = _base("embedder", folder)
    encoder = base.config.encoder
    assert encoder is not None
    head = HeadConfig(
        kind=HeadKind.MULTI_VECTOR_EMBEDDING,
        dense=(DenseConfig(size=SIZE, bias=False),),
        normalize=True,
    )
    has_unattended = spec.filler is not None and not spec.attends_to_filler
    return replace(
        base,
        config=msgspec.structs.replace(
            base.config,
            head=head,
            encoder=msgspec.structs.replace(encoder, has_unattended=has_unattended),
        ),
        weights=base.weights | {"head.dense.0.linear.weight": projection()},
        tasks=(Task.EMBED, Task.RERANK),
        embedding=Embedding(
            kind=EmbeddingKind.MULTI_VECTOR,
            size=SIZE,
            is_normalized=True,
            multi_vector=spec,
            prompts={} if has_unattended else {"document": UNFILLED_PROMPT},
        ),
    )


@cache
def projection() -> torch.Tensor:
    """The layer from hidden vectors to those of tokens: ``[hidden, SIZE]``."""
    return torch.randn(heads.SIZE, SIZE, generator=torch.Generator().manual_seed(5))


@cache
def spec(name: str) -> MultiVector:
    """How a multi-vector model reads texts."""
    is_filled = name == MULTI_VECTOR
    return MultiVector(
        query_marker=QUERY_MARKER if is_filled else None,
        document_marker=DOCUMENT_MARKER if is_filled else None,
        query_length=QUERY_LENGTH,
        document_length=DOCUMENT_LENGTH,
        filler=MASK if is_filled else None,
        skipped=_ids_of(",.!?"),
    )


def _ids_of(tokens: Iterable[str]) -> tuple[int, ...]:
    vocabulary = heads.tokenizer().get_vocab()
    return tuple(vocabulary[token] for token in tokens)


def write_bundle_of(root: Path, name: str) -> None:
    """Writes the bundle ``root / name`` of one of :data:`NAMES`, unless it exists."""
    if (root / name).exists():
        return
    folder = root / f".source-{name}"
    model = _sparse(folder) if name == SPARSE else _multi_vector(folder, spec(name))
    write_bundle(model, root, name=name)
    shutil.rmtree(folder)


def sparse_reference(text: str) -> Any:
    """Weights of all tokens of the vocabulary (Formal et al. 2021): ``[vocabulary]``."""
    with torch.no_grad():
        logits = heads.model("filler")(**heads.tokenizer()(text, return_tensors="pt")).logits[0]
        return torch.log1p(torch.relu(logits)).amax(0).numpy()


def vectors_reference(ids: list[int], num_attended: int) -> Any:
    """The vectors of tokens, of which the first ``num_attended`` are attended to."""
    mask = torch.tensor([[1] * num_attended + [0] * (len(ids) - num_attended)])
    with torch.no_grad():
        model = heads.model("embedder")
        hidden = model(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]
        vectors = (hidden @ projection()).numpy()
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def query_ids(text: str, name: str = MULTI_VECTOR) -> tuple[list[int], int]:
    """ColBERT's reading of a query: its ids, and how many of them are attended to."""
    tokenizer: Any = heads.tokenizer()
    if name == UNFILLED:
        ids = tokenizer(text, truncation=True, max_length=QUERY_LENGTH)["input_ids"]
        return ids, len(ids)
    ids = tokenizer(text, truncation=True, max_length=QUERY_LENGTH - 1)["input_ids"]
    marked = [ids[0], QUERY_MARKER, *ids[1:]]
    return marked + [MASK] * (QUERY_LENGTH - len(marked)), len(marked)


def document_ids(text: str, name: str = MULTI_VECTOR) -> list[int]:
    """ColBERT's reading of a document: its ids, those of skipped tokens included."""
    tokenizer: Any = heads.tokenizer()
    has_marker = name == MULTI_VECTOR
    text = text if has_marker else UNFILLED_PROMPT + text
    length = DOCUMENT_LENGTH - has_marker
    ids: list[int] = tokenizer(text, truncation=True, max_length=length)["input_ids"]
    return [ids[0], DOCUMENT_MARKER, *ids[1:]] if has_marker else ids


def document_vectors(text: str, name: str = MULTI_VECTOR) -> Any:
    """The vectors of a document's tokens that are not skipped."""
    ids = document_ids(text, name)
    kept = [index for index, id_ in enumerate(ids) if id_ not in spec(name).skipped]
    return vectors_reference(ids, len(ids))[kept]


def max_sim(query: str, document: str, name: str = MULTI_VECTOR) -> float:
    """Khattab and Zaharia 2020, equation 3."""
    vectors = vectors_reference(*query_ids(query, name))
    return float((vectors @ document_vectors(document, name).T).max(1).sum())
