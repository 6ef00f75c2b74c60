"""Hugging Face folders with missing or damaged files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    OPTConfig,
    OPTForCausalLM,
)

from export.errors import ExportError, SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from tests.export.importers.support import WORDS, edit_json, edit_weights, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    return save(LlamaForCausalLM(config), tmp_path)


def message_of(folder: Path, kind: type[ExportError]) -> str:
    with pytest.raises(kind) as caught:
        load_checkpoint(str(folder))
    return str(caught.value)


def test_invalid_json_is_reported(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')
    assert message_of(folder, SourceError).startswith("config.json: ")


def test_config_must_be_a_json_object(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")
    assert message_of(folder, SourceError) == "config.json is not a JSON object"


def test_missing_weights_are_reported(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index" in message_of(
        folder, SourceError
    )


@pytest.mark.parametrize("part", ["../..", "..", "config.json", "model.safetensors"])
def test_the_folder_of_the_model_is_named(tmp_path: Path, folder: Path, part: str) -> None:
    """A package's folder or a file of the model is not its folder."""
    package = tmp_path / "package" / "data" / "model"
    package.parent.mkdir(parents=True)
    files = [path for path in folder.iterdir() if path.is_file()]
    package.mkdir()
    for path in files:
        path.rename(package / path.name)
    given = (package / part).resolve()
    with pytest.raises(UnsupportedError) as caught:
        load_checkpoint(str(given))
    assert str(caught.value) == f"{given} is not a model's folder; there is one in {package}"
    assert load_checkpoint(str(package)).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("size", [0, 4, 100, 2000])
def test_truncated_weights_are_reported(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert message_of(folder, SourceError).startswith("model.safetensors: ")


@pytest.mark.parametrize("name", ["chat_template.jinja", "vocab.txt", "merges.txt"])
def test_text_that_is_not_utf8_is_reported(folder: Path, name: str) -> None:
    if name != "chat_template.jinja":
        (folder / "tokenizer.json").unlink()
    if name == "merges.txt":
        (folder / "vocab.json").write_text('{"a": 0}')
    (folder / name).write_bytes(b"\xff")
    assert message_of(folder, SourceError).startswith(f"{name}: 'utf-8' codec can't decode")


@pytest.mark.parametrize("tied", [False, True])
def test_integer_weights_are_rejected(folder: Path, tied: bool) -> None:
    edit_json(folder / "config.json", tie_word_embeddings=tied)
    quantized = torch.zeros(len(WORDS), 16, dtype=torch.int8)
    edit_weights(folder, values={"lm_head.weight": quantized})
    message = message_of(folder, WeightsError)
    assert message == "lm_head.weight is of type torch.int8, not floating point"


def test_weights_without_dimensions_are_reported(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1}
    config = OPTConfig(vocab_size=len(WORDS), num_attention_heads=2, **sizes)
    save(OPTForCausalLM(config), tmp_path)
    name = "model.decoder.embed_positions.weight"
    edit_weights(tmp_path, values={name: torch.tensor(0.0)})
    assert message_of(tmp_path, WeightsError).startswith(f"wrong shapes: {name} []: ")


def test_missing_tokenizer_is_reported(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    message = message_of(folder, UnsupportedError)
    assert "no tokenizer; supported: tokenizer.json, a SentencePiece" in message


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_shards_outside_the_folder_are_rejected(folder: Path, name: str) -> None:
    index = {"weight_map": {"lm_head.weight": name}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert name in message_of(folder, SourceError)


def test_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors" in message_of(folder, SourceError)


def test_invalid_tokenizer_is_reported(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "nonsense"}}')
    assert "the tokenizer cannot be read" in message_of(folder, SourceError)


def test_invalid_tokenizer_with_languages_is_reported(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    config = M2M100Config(vocab_size=len(WORDS), **sizes)
    save(M2M100ForConditionalGeneration(config), tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "nonsense"}}')
    assert "the tokenizer cannot be read" in message_of(tmp_path, SourceError)


def test_tokenizer_larger_than_the_model_is_rejected(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens(["surplus"])
    tokenizer.save(str(path))
    message = message_of(folder, SourceError)
    assert message.endswith(f"the model has only {len(WORDS)} tokens")
