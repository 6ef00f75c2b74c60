"""Qwen2, Qwen3 and Llama 3.1 from GGUF against transformers; their pre-tokenizers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from export.sources import load_checkpoint
from export.tokenization.byte_level_bpe import PRE_TOKENIZERS, ByteLevelBpe
from tests.export.importers.support import logits, random_ids, randomise
from tests.export.importers.test_llama_gguf import NUM_HEADS, NUM_KV_HEADS, TOKENS, write

SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
    "attn_implementation": "eager",
}


def assert_equal_logits(model: Any, path: Path) -> None:
    ids = random_ids(3, 19) % len(TOKENS)
    with torch.no_grad():
        expected = model(ids).logits
    actual = logits(load_checkpoint(str(path)), ids)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_qwen2_matches_transformers(tmp_path: Path) -> None:
    model = randomise(Qwen2ForCausalLM(Qwen2Config(**SHAPE)))
    assert_equal_logits(model, write(tmp_path / "model.gguf", model, family="qwen2"))


@pytest.mark.parametrize("head_size", [16, 32])
def test_qwen3_matches_transformers(tmp_path: Path, head_size: int) -> None:
    model = randomise(Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=head_size)))
    sizes: dict[str, Any] = {
        "qwen3__attention__key_length": head_size,
        "qwen3__attention__value_length": head_size,
    }
    assert_equal_logits(model, write(tmp_path / "model.gguf", model, family="qwen3", **sizes))


def test_llama_with_rope_frequency_factors_matches_transformers(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 5e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = randomise(LlamaForCausalLM(LlamaConfig(**SHAPE | {"rope_parameters": scaling})))
    plain = 5e4 ** (-torch.arange(0, 16, 2) / 16)
    factors = plain / model.model.rotary_emb.inv_freq
    assert factors.max() > 1
    tensors = {"rope_freqs.weight": factors.numpy()}
    assert_equal_logits(model, write(tmp_path / "model.gguf", model, tensors=tensors))


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("qwen2", ["I", "'m", "Ġthere", ",", "Ġ", "4", "2", "0", "1", "!ĊĊ", "Ġ", "Ġx"]),
        ("llama-bpe", ["I", "'m", "Ġthere", ",", "Ġ", "420", "1", "!ĊĊ", "Ġ", "Ġx"]),
        ("lfm2", ["I", "'m", "Ġthere", ",", "Ġ", "420", "1", "!ĊĊ", "Ġ", "Ġx"]),
    ],
)
def test_pre_tokenizer_splits_text(name: str, pieces: list[str]) -> None:
    text = "I'm there, 4201!\n\n  x"
    assert [piece for piece, _ in PRE_TOKENIZERS[name].pre_tokenize_str(text)] == pieces


def test_pre_tokenizer_matches_transformers() -> None:
    theirs = Qwen2Tokenizer(vocab={"a": 0, "<|endoftext|>": 1}, merges=[]).backend_tokenizer
    text = "Don't stop\u2014it's 12,345 caf\u00e9s!!\r\n\t x\u00a0y  \n z "
    expected = theirs.pre_tokenizer.pre_tokenize_str(text)
    assert PRE_TOKENIZERS["qwen2"].pre_tokenize_str(text) == expected


def test_llama_3_encodes_a_known_word_without_merges() -> None:
    parts: dict[str, Any] = {"tokens": [*"abc", "bc", "abc"], "merges": ["b c"]}
    for name, tokens in (("lfm2", ["abc"]), ("llama-bpe", ["abc"]), ("qwen2", ["a", "bc"])):
        tokenizer = Tokenizer.from_str(ByteLevelBpe(**parts, pre_tokenizer=name).to_json())
        assert tokenizer.encode("abc").tokens == tokens


def test_qwen_normalizes_to_nfc() -> None:
    bpe = ByteLevelBpe(tokens=["Ã", "©", "e"], merges=[], pre_tokenizer="qwen2")
    assert Tokenizer.from_str(bpe.to_json()).encode("e\u0301").tokens == ["Ã", "©"]
