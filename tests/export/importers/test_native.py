"""Vectors of checkpoints that ``train`` writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.native import read_native_config
from export.sources import load_checkpoint
from model.bundle import Embedding
from model.bundle_files import to_json
from model.native_checkpoint import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, NativeConfig
from tests.export.importers.test_retrieval import save_pylate, save_sparse

ROOT = Path(__file__).parents[3]


def save_native(checkpoint: Checkpoint, folder: Path, embedding: Embedding | None) -> Path:
    folder.mkdir()
    native = NativeConfig(
        name="trained",
        license="Apache-2.0",
        tasks=checkpoint.tasks,
        model=checkpoint.config,
        special_tokens=checkpoint.special_tokens,
        embedding=embedding,
    )
    (folder / CONFIG_FILE).write_bytes(to_json(native))
    weights = {name: x.contiguous() for name, x in checkpoint.weights.items()}
    save_file(weights, folder / WEIGHTS_FILE)
    (folder / TOKENIZER_FILE).write_text(checkpoint.tokenizer_json)
    return folder


@pytest.mark.parametrize("save", [save_pylate, save_sparse], ids=["multi_vector", "sparse"])
def test_the_embedding_and_the_head_are_kept(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    original = load_checkpoint(str(save(tmp_path / "source")))
    folder = save_native(original, tmp_path / "trained", original.embedding)
    trained = load_checkpoint(str(folder))
    assert trained.embedding == original.embedding
    assert trained.config == original.config
    assert trained.tasks == original.tasks
    assert all(torch.equal(trained.weights[name], x) for name, x in original.weights.items())


Change = Callable[[Embedding], Embedding | None]


def changed(**values: Any) -> Change:
    """Changes how the model reads texts."""

    def change(embedding: Embedding) -> Embedding:
        assert embedding.multi_vector is not None
        spec = msgspec.structs.replace(embedding.multi_vector, **values)
        return msgspec.structs.replace(embedding, multi_vector=spec)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: None, "embedding is not of the head multi_vector"),
        (
            lambda embedding: msgspec.structs.replace(embedding, multi_vector=None),
            "embedding is not of the head multi_vector",
        ),
        (changed(document_length=41), "a length of 41, but the model has 40 positions"),
        (changed(attends_to_filler=True), "has_unattended does not fit"),
        (changed(filler=None), "has_unattended does not fit"),
        (changed(skipped=(5, 63)), r"the tokens \[63\], but the model has only 63"),
    ],
)
def test_an_embedding_that_does_not_fit_is_refused(
    tmp_path: Path, change: Change, message: str
) -> None:
    original = load_checkpoint(str(save_pylate(tmp_path / "source")))
    assert original.embedding is not None
    folder = save_native(original, tmp_path / "trained", change(original.embedding))
    with pytest.raises(SourceError, match=message):
        load_checkpoint(str(folder))


def test_labels_must_be_those_of_the_head(tmp_path: Path) -> None:
    shipped = ROOT / "models" / "digits"
    for file in shipped.iterdir():
        (tmp_path / file.name).symlink_to(file)
    native = read_native_config(shipped)
    (tmp_path / CONFIG_FILE).unlink()
    fewer = msgspec.structs.replace(native, labels=native.labels[1:])
    (tmp_path / CONFIG_FILE).write_bytes(to_json(fewer))
    with pytest.raises(SourceError, match=r"config\.json: 9 labels for a head with 10"):
        load_checkpoint(str(tmp_path))
