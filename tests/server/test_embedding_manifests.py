"""Bundles whose vectors are not of the kind that their manifest says are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.bundle import MANIFEST_FILE, BundleError
from model.bundle_files import read_manifest
from tests.m3_models import M3
from tests.retrieval_models import MULTI_VECTOR, NAMES, SPARSE


def _embedding(**changes: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["embedding"].update(changes)


def _spec(**changes: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["embedding"]["multi_vector"].update(changes)


def _without_input(manifest: Any) -> None:
    inputs = manifest["graphs"]["encode"]["inputs"]
    inputs[:] = [tensor for tensor in inputs if tensor["name"] != "attended_lengths"]


def _other_output(manifest: Any) -> None:
    manifest["graphs"]["encode"]["outputs"][0]["shape"] = ["batch", 16]


DAMAGES: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "prompt": (SPARSE, _embedding(default_prompt="x"), "default_prompt 'x' is not in prompts"),
    "weights": (SPARSE, _embedding(size=30), "30 weights for a vocabulary of 30522 tokens"),
    "no spec": (MULTI_VECTOR, _embedding(multi_vector=None), "does not fit the kind multi_vector"),
    "spec of another kind": (MULTI_VECTOR, _embedding(kind="dense"), "does not fit the kind dense"),
    "output": (MULTI_VECTOR, _other_output, "does not return multi_vector vectors"),
    "sparse output": (SPARSE, _other_output, "does not return sparse vectors"),
    "size": (MULTI_VECTOR, _embedding(size=17), "does not return multi_vector vectors"),
    "input": (MULTI_VECTOR, _without_input, "has no input attended_lengths"),
    "length": (MULTI_VECTOR, _spec(document_length=1000), "texts of 1000 tokens are beyond"),
    "marker": (MULTI_VECTOR, _spec(query_marker=30_522), "token 30522 is beyond the vocabulary"),
    "skipped": (MULTI_VECTOR, _spec(skipped=[5, 40_000]), "token 40000 is beyond the vocabulary"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_refuses_vectors_of_another_kind(
    retrieval_bundles: Path, tmp_path: Path, damage: str
) -> None:
    name, change, reason = DAMAGES[damage]
    source = retrieval_bundles / name / "1" / MANIFEST_FILE
    manifest = json.loads(source.read_text())
    change(manifest)
    directory = tmp_path / name / "1"
    directory.mkdir(parents=True)
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=reason):
        read_manifest(directory)


def _without_output(name: str) -> Callable[[Any], None]:
    def change(manifest: Any) -> None:
        outputs = manifest["graphs"]["encode"]["outputs"]
        outputs[:] = [tensor for tensor in outputs if tensor["name"] != name]

    return change


SEVERAL: dict[str, tuple[Callable[[Any], None], str]] = {
    "weights": (_without_output("sparse_weights"), "does not return sparse_weights"),
    "vectors": (_without_output("multi_vectors"), "does not return .* multi_vectors as stated"),
    "size": (_embedding(token_vectors={"size": 25}), "multi_vectors as stated"),
    "unstated": (lambda manifest: manifest["embedding"].pop("token_weights"), "as stated"),
    "excluded": (_embedding(token_weights={"excluded": [40_000]}), "beyond the vocabulary"),
    "negative": (_embedding(token_weights={"excluded": [-1]}), "excluded"),
    "blank": (_embedding(static_tokens={"blank": 30_522}), "static_tokens: a token is beyond"),
    "ignored": (_embedding(static_tokens={"blank": 0, "ignored": 40_000}), "token is beyond"),
    "first kind": (_embedding(kind="sparse", size=30_522), "sparse vectors have no others"),
}


@pytest.mark.parametrize("damage", SEVERAL)
def test_refuses_other_kinds_than_the_graph_returns(
    m3_bundles: Path, tmp_path: Path, damage: str
) -> None:
    change, reason = SEVERAL[damage]
    manifest = json.loads((m3_bundles / M3 / "1" / MANIFEST_FILE).read_text())
    change(manifest)
    directory = tmp_path / M3 / "1"
    directory.mkdir(parents=True)
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=reason):
        read_manifest(directory)


@pytest.mark.parametrize("name", NAMES)
def test_reads_what_export_writes(retrieval_bundles: Path, name: str) -> None:
    assert read_manifest(retrieval_bundles / name / "1").embedding is not None
