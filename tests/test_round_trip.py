"""End to end from the command line, per model kind: ``save_pretrained``, export, serve, call."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.export.importers.support import WORDS, randomise, save
from tests.serving import server_process

ROOT = Path(__file__).parents[1]
TEXT = "w3 w14 w15 w9 w26"
IDS = [WORDS.index(word) for word in TEXT.split()]
NUM_TOKENS = 16
SHARED: dict[str, Any] = {"vocab_size": len(WORDS), "pad_token_id": 0, "eos_token_id": 1}
BERT: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
QWEN2: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 96,
}
T5: dict[str, Any] = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {
        "bert": randomise(BertModel(BertConfig(**BERT))),
        "qwen2": randomise(Qwen2ForCausalLM(Qwen2Config(**SHARED | QWEN2)), seed=1),
        "t5": randomise(T5ForConditionalGeneration(T5Config(**SHARED | T5)), seed=2),
    }


@pytest.fixture(scope="module")
def target(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("round-trip")
    for name, model in models.items():
        source, out = save(model, folder / name), folder / "bundles" / name
        command = [sys.executable, "-m", "export", str(source), "--out", str(out)]
        subprocess.run([*command, "--precision", "fp32"], check=True, cwd=ROOT)
    with server_process(folder / "bundles") as server:
        yield server.target


def client_output(target: str, *arguments: str) -> Any:
    """The single output printed by the client."""
    command = [sys.executable, "-m", "client", "--target", target, *arguments, "--json"]
    result = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    (output,) = json.loads(result.stdout)["outputs"]
    return output


def decoded(ids: Any) -> str:
    """The text of ``ids`` up to the end token."""
    tokens = ids.tolist()
    return " ".join(WORDS[id_] for id_ in (tokens[: tokens.index(1)] if 1 in tokens else tokens))


def test_encoder_embeds_like_transformers(models: dict[str, Any], target: str) -> None:
    vector = client_output(target, "embed", "--model", "bert", TEXT)
    with torch.no_grad():
        expected = models["bert"](torch.tensor([IDS])).last_hidden_state.mean(1)[0].numpy()
    np.testing.assert_allclose(vector, expected, atol=1e-4)


def test_decoder_generates_like_transformers(models: dict[str, Any], target: str) -> None:
    options = ("--model", "qwen2", "--max-new-tokens", str(NUM_TOKENS))
    (ids,) = models["qwen2"].generate(
        torch.tensor([IDS]), do_sample=False, max_new_tokens=NUM_TOKENS
    )
    assert TEXT + client_output(target, "generate", *options, TEXT) == decoded(ids)


def test_encoder_decoder_translates_like_transformers(models: dict[str, Any], target: str) -> None:
    options = ("--model", "t5", "--max-new-tokens", str(NUM_TOKENS), "--beam-size", "4")
    ids = models["t5"].generate(
        torch.tensor([IDS]), do_sample=False, num_beams=4, max_new_tokens=NUM_TOKENS
    )[0, 1:]
    assert client_output(target, "translate", *options, TEXT) == decoded(ids)
