"""Weight files: precisions, shards, tied matrices, pickles."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.errors import SourceError, UnsupportedError, WeightsError
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
def test_16_bit_weights_become_fp32(model: Any, folder: Path, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    save_file({name: weight.to(dtype) for name, weight in load_file(path).items()}, path)
    rounded = llama(num_hidden_layers=1)
    rounded.load_state_dict({k: w.to(dtype).float() for k, w in model.state_dict().items()})
    assert_equal_logits(rounded, folder)
    assert all(w.dtype == torch.float32 for w in load_checkpoint(str(folder)).weights.values())


def test_tied_matrix_may_be_saved_once_or_twice(tmp_path: Path) -> None:
    tied = llama(num_hidden_layers=1, tie_word_embeddings=True)
    folder = save(tied, tmp_path)
    path = folder / "model.safetensors"
    weights = load_file(path)
    assert "lm_head.weight" not in weights
    assert_equal_logits(tied, folder)
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, path)
    assert_equal_logits(tied, folder)


def test_missing_untied_output_matrix_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["lm_head.weight"]
    save_file(weights, path)
    with pytest.raises(Exception, match=r"missing: lm_head\.weight"):
        load_checkpoint(str(folder))


def test_all_damaged_weights_are_named(folder: Path) -> None:
    """In fp16, whose extremes are finite; by the checkpoint's names, of packed weights too."""
    path = folder / "model.safetensors"
    weights = {name: weight.half() for name, weight in load_file(path).items()}
    damaged = ("model.layers.0.self_attn.k_proj.weight", "lm_head.weight", "model.norm.weight")
    for name, value in zip(damaged, (torch.nan, torch.inf, -torch.inf), strict=True):
        weights[name].view(-1)[-1] = value
    weights["model.embed_tokens.weight"][0, :2] = torch.tensor([-65504.0, 65504.0])
    save_file(weights, path)
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(folder))
    lines = str(caught.value).splitlines()
    assert sorted(lines[1:]) == sorted(f"NaN or infinite: {name}" for name in damaged)


def test_missing_shard_is_named(model: Any, tmp_path: Path) -> None:
    folder = save(model, tmp_path, max_shard_size="40KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert_equal_logits(model, folder)
    shards[1].unlink()
    with pytest.raises(SourceError, match=f"{shards[1].name}: no such file"):
        load_checkpoint(str(folder))


def test_one_file_counts_before_an_index(model: Any, tmp_path: Path) -> None:
    """As in ``transformers``: the index and the shards may be of an older save."""
    older = llama(num_hidden_layers=1)
    older.lm_head.weight.data.zero_()
    save(older, tmp_path, max_shard_size="40KB")
    index = (tmp_path / "model.safetensors.index.json").read_text("utf-8")
    shards = {path: path.read_bytes() for path in tmp_path.glob("model-*.safetensors")}
    save(model, tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    for path, content in shards.items():
        path.write_bytes(content)
    assert_equal_logits(model, tmp_path)


def test_weight_in_two_shards_is_rejected(model: Any, tmp_path: Path) -> None:
    folder = save(model, tmp_path, max_shard_size="40KB")
    first, second, *_ = sorted(folder.glob("model-*.safetensors"))
    save_file({**load_file(second), **load_file(first)}, second)
    with pytest.raises(SourceError, match="is in another file too"):
        load_checkpoint(str(folder))


def save_as_pickles(folder: Path, num_shards: int) -> list[Path]:
    """Converts the weights of ``folder`` to pickles, as older transformers versions saved them."""
    path = folder / "model.safetensors"
    weights = list(load_file(path).items())
    path.unlink()
    paths = []
    for index in range(num_shards):
        name = f"pytorch_model-{index + 1:05}-of-{num_shards:05}.bin"
        paths.append(folder / (name if num_shards > 1 else "pytorch_model.bin"))
        torch.save(dict(weights[index::num_shards]), paths[-1])
    return paths


def rejection_message(source: Path) -> str:
    """The error message for a pickle; its last line is a conversion command."""
    with pytest.raises(UnsupportedError, match="can run code when it is loaded") as caught:
        load_checkpoint(str(source))
    return str(caught.value)


def run(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "python"
    subprocess.run([sys.executable, *arguments], check=True, timeout=120)


def test_suggested_command_converts_a_folder(model: Any, folder: Path) -> None:
    save_as_pickles(folder, 3)
    run(rejection_message(folder).splitlines()[-1])
    assert_equal_logits(model, folder)


def test_suggested_command_converts_a_file(model: Any, folder: Path) -> None:
    (path,) = save_as_pickles(folder, 1)
    path = path.rename(folder / "weights.pt")
    run(rejection_message(path).splitlines()[-1])
    assert set(load_file(folder / "weights.safetensors")) == set(model.state_dict())


def test_legacy_pickle_format_is_rejected(folder: Path) -> None:
    path = folder / "model.safetensors"
    torch.save(load_file(path), folder / "old.pth", _use_new_zipfile_serialization=False)
    path.unlink()
    assert "old.pth" in rejection_message(folder)
    assert "old.pth" in rejection_message(folder / "old.pth")


def test_pickle_beside_safetensors_is_ignored(model: Any, folder: Path) -> None:
    torch.save({}, folder / "optimizer.pt")
    assert_equal_logits(model, folder)


def test_tie_word_embeddings_may_be_missing(model: Any, folder: Path) -> None:
    edit_json(folder / "config.json", tie_word_embeddings=None)
    ids = random_ids(1, 5)
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(
        logits(load_checkpoint(str(folder)), ids), expected, atol=1e-4, rtol=0
    )
