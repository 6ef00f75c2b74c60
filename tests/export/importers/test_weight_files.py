"""The ways in which weights lie on a disk: precisions, shards, tied matrices, pickles."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, logits, random_ids, save
from tests.export.importers.test_llama import assert_equal_logits, llama


@pytest.fixture(scope="module")
def model() -> Any:
    return llama(num_hidden_layers=1)


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    return save(model, tmp_path / "model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_sixteen_bits(model: Any, folder: Path, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    save_file({name: weight.to(dtype) for name, weight in load_file(path).items()}, path)
    rounded = llama(num_hidden_layers=1)
    rounded.load_state_dict({k: w.to(dtype).float() for k, w in model.state_dict().items()})
    assert_equal_logits(rounded, folder)
    assert all(w.dtype == torch.float32 for w in load_checkpoint(str(folder)).weights.values())


def test_a_tied_matrix_may_be_saved_twice_or_once(tmp_path: Path) -> None:
    tied = llama(num_hidden_layers=1, tie_word_embeddings=True)
    folder = save(tied, tmp_path)
    path = folder / "model.safetensors"
    weights = load_file(path)
    assert "lm_head.weight" not in weights
    assert_equal_logits(tied, folder)
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, path)
    assert_equal_logits(tied, folder)


def test_an_output_matrix_that_is_missing_and_not_tied_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["lm_head.weight"]
    save_file(weights, path)
    with pytest.raises(Exception, match=r"missing: lm_head\.weight"):
        load_checkpoint(str(folder))


def test_a_shard_that_is_missing_is_named(model: Any, tmp_path: Path) -> None:
    folder = save(model, tmp_path, max_shard_size="40KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert_equal_logits(model, folder)
    shards[1].unlink()
    with pytest.raises(SourceError, match=f"{shards[1].name}: no such file"):
        load_checkpoint(str(folder))


def test_a_name_in_two_shards(model: Any, tmp_path: Path) -> None:
    folder = save(model, tmp_path, max_shard_size="40KB")
    first, second, *_ = sorted(folder.glob("model-*.safetensors"))
    save_file({**load_file(second), **load_file(first)}, second)
    with pytest.raises(SourceError, match="is in another file too"):
        load_checkpoint(str(folder))


def pickled(folder: Path, num_shards: int) -> list[Path]:
    """Turns the weights of ``folder`` into what older versions of transformers saved."""
    path = folder / "model.safetensors"
    weights = list(load_file(path).items())
    path.unlink()
    paths = []
    for index in range(num_shards):
        name = f"pytorch_model-{index + 1:05}-of-{num_shards:05}.bin"
        paths.append(folder / (name if num_shards > 1 else "pytorch_model.bin"))
        torch.save(dict(weights[index::num_shards]), paths[-1])
    return paths


def refused(source: Path) -> str:
    """The message of the refusal; its last line is a command."""
    with pytest.raises(UnsupportedError, match="can run code when it is loaded") as caught:
        load_checkpoint(str(source))
    return str(caught.value)


def run(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "python"
    subprocess.run([sys.executable, *arguments], check=True, timeout=120)


def test_the_command_in_the_refusal_converts_a_folder(model: Any, folder: Path) -> None:
    pickled(folder, 3)
    run(refused(folder).splitlines()[-1])
    assert_equal_logits(model, folder)


def test_the_command_in_the_refusal_converts_a_file(model: Any, folder: Path) -> None:
    (path,) = pickled(folder, 1)
    path = path.rename(folder / "weights.pt")
    run(refused(path).splitlines()[-1])
    assert set(load_file(folder / "weights.safetensors")) == set(model.state_dict())


def test_a_pickle_of_before_the_zip_format(folder: Path) -> None:
    path = folder / "model.safetensors"
    torch.save(load_file(path), folder / "old.pth", _use_new_zipfile_serialization=False)
    path.unlink()
    assert "old.pth" in refused(folder)
    assert "old.pth" in refused(folder / "old.pth")


def test_a_pickle_beside_safetensors_is_left_alone(model: Any, folder: Path) -> None:
    torch.save({}, folder / "optimizer.pt")
    assert_equal_logits(model, folder)


def test_a_configuration_that_says_nothing_of_tying(model: Any, folder: Path) -> None:
    edit_json(folder / "config.json", tie_word_embeddings=None)
    ids = random_ids(1, 5)
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(
        logits(load_checkpoint(str(folder)), ids), expected, atol=1e-4, rtol=0
    )
