"""Bundles whose spans are not those that their manifest states are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.bundle import MANIFEST_FILE, BundleError
from model.bundle_files import read_manifest
from tests.gliner_models import GLINER, MAX_WIDTH, VOCABULARY_SIZE
from tests.heads import write_bundle_of


def _spec(**changes: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["span_tagging"].update(changes)


def _without_input(name: str) -> Callable[[Any], None]:
    def change(manifest: Any) -> None:
        inputs = manifest["graphs"]["encode"]["inputs"]
        inputs[:] = [tensor for tensor in inputs if tensor["name"] != name]

    return change


def _other_input(manifest: Any) -> None:
    tensor = {"name": "logit_positions", "dtype": "int32", "shape": ["chosen"]}
    manifest["graphs"]["encode"]["inputs"].append(tensor)


def _input_type(manifest: Any) -> None:
    for tensor in manifest["graphs"]["encode"]["inputs"]:
        if tensor["name"] == "word_positions":
            tensor["dtype"] = "int64"


def _output(**changes: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["graphs"]["encode"]["outputs"][0].update(changes)


DAMAGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "no spec": (lambda manifest: manifest.pop("span_tagging"), "does not take word_positions"),
    "words": (_without_input("word_positions"), "does not take word_positions"),
    "lengths": (_without_input("word_lengths"), "does not take word_positions, word_lengths"),
    "labels": (_without_input("label_positions"), "label_positions"),
    "type": (_input_type, "does not take word_positions"),
    "input": (_other_input, "takes other inputs"),
    "width": (_spec(max_width=MAX_WIDTH + 1), "does not return these spans"),
    "no width": (_spec(max_width=0), "max_width"),
    "no words": (_spec(max_words=0), "max_words"),
    "shape": (_output(shape=["batch", "length", MAX_WIDTH, "labels"]), "does not return these"),
    "output type": (_output(dtype="float16"), "does not return these spans"),
    "marker": (_spec(marker=VOCABULARY_SIZE), "not two tokens of the vocabulary"),
    "separator": (_spec(separator=VOCABULARY_SIZE), "not two tokens of the vocabulary"),
    "same": (_spec(marker=7, separator=7), "not two tokens of the vocabulary"),
    "negative": (_spec(marker=-1), "marker"),
    "labels of its own": (lambda x: x.update(labels=["a"]), "only encoders that tag"),
    "task": (lambda x: x.update(tasks=["classify"]), "only encoders that tag"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_refuses_other_spans_than_the_manifest_states(
    gliner_bundles: Path, tmp_path: Path, damage: str
) -> None:
    change, reason = DAMAGES[damage]
    directory = tmp_path / GLINER / "1"
    shutil.copytree(gliner_bundles / GLINER / "1", directory)
    assert read_manifest(directory).span_tagging
    manifest = json.loads((directory / MANIFEST_FILE).read_text())
    change(manifest)
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=reason):
        read_manifest(directory)


def test_other_bundles_have_no_such_field(tmp_path: Path) -> None:
    write_bundle_of(tmp_path, "tagger")
    assert "span_tagging" not in (tmp_path / "tagger" / "1" / MANIFEST_FILE).read_text()
