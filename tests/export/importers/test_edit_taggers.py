"""Token classifiers whose labels are edits."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from export.errors import SourceError, UnsupportedError
from export.importers.edit_tags import read_edit_tags
from export.importers.registry import import_path
from export.sources import load_checkpoint
from model.bundle import Edit, EditKind, Task
from tests import heads
from tests.export.importers.support import edit_json


def test_tags_of_gector_are_edits() -> None:
    tags = ("$KEEP", "$APPEND_,", "$REPLACE_it's", "$TRANSFORM_CASE_LOWER", "$MERGE_SPACE")
    assert read_edit_tags(tags, "config.json") == (
        Edit(kind=EditKind.KEEP),
        Edit(kind=EditKind.APPEND, text=","),
        Edit(kind=EditKind.REPLACE, text="it's"),
        Edit(kind=EditKind.LOWERCASE),
        Edit(kind=EditKind.MERGE),
    )


def test_unknown_tags_are_refused() -> None:
    tags = ("$KEEP", "$TRANSFORM_VERB_VB_VBZ", "$REPLACE_", "O")
    expected = r"config.json: 3 edit tags are not supported: \$TRANSFORM_VERB_VB_VBZ, \$REPLACE_, O"
    with pytest.raises(UnsupportedError, match=expected):
        read_edit_tags(tags, "config.json")


def test_a_token_classifier_with_edit_tags_corrects(tmp_path: Path) -> None:
    heads.model("corrector").save_pretrained(tmp_path)
    shutil.copy(heads.tokenizer_folder() / "tokenizer.json", tmp_path)
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.tasks == (Task.CORRECT,)
    assert checkpoint.edits is not None
    assert checkpoint.edits.edits[1] == Edit(kind=EditKind.REPLACE, text="has")
    edit_json(tmp_path / "config.json", min_edit_score=0.5)
    changed = load_checkpoint(str(tmp_path)).edits
    assert changed is not None
    assert changed.min_score == 0.5


def _graph(folder: Path, name: str) -> None:
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    node = helper.make_node("Constant", [], ["y"], value_float=1.0)
    onnx.save(helper.make_model(helper.make_graph([node], "g", [], [y])), str(folder / name))


def test_other_graphs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tag_vocab.json").write_text(json.dumps({"tags": ["$KEEP"]}))
    shutil.copy(heads.tokenizer_folder() / "tokenizer.json", tmp_path)
    _graph(tmp_path, "tagger.onnx")
    with pytest.raises(SourceError, match=r"no weight distilbert\.embeddings"):
        import_path(tmp_path)
    _graph(tmp_path, "other.onnx")
    with pytest.raises(SourceError, match=r"several graphs: other\.onnx, tagger\.onnx"):
        import_path(tmp_path)
