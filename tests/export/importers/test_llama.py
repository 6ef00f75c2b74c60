"""Llama from a Hugging Face folder: parity with transformers, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from export.errors import SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import (
    WORDS,
    edit_json,
    edit_weights,
    logits,
    random_ids,
    randomise,
    save,
)

SHAPE: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 3,
    "attn_implementation": "eager",
}


def llama(**changes: Any) -> Any:
    return randomise(LlamaForCausalLM(LlamaConfig(**{**SHAPE, **changes})))


def assert_equal_logits(model: Any, folder: Path) -> None:
    ids = random_ids(3, 19)
    with torch.no_grad():
        expected = model(ids).logits
    actual = logits(load_checkpoint(str(folder)), ids)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 4},
        {"head_dim": 24},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}, "rms_norm_eps": 1e-5},
    ],
    ids=["grouped", "tied", "multi-query", "multi-head", "head size", "biases", "rotary base"],
)
def test_logits_match_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = llama(**changes)
    assert_equal_logits(model, save(model, tmp_path))


def test_a_copy_of_a_tied_output_must_equal_the_token_table(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=True)
    save(model, tmp_path)
    table = model.model.embed_tokens.weight.detach().clone()
    edit_weights(tmp_path, values={"lm_head.weight": table})
    assert_equal_logits(model, tmp_path)
    table[3, 5] += 1e-4
    edit_weights(tmp_path, values={"lm_head.weight": table})
    with pytest.raises(WeightsError, match=r"lm_head\.weight, which model\.embed_tokens\.weight"):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta"])
def test_numbers_of_the_configuration_are_finite(tmp_path: Path, field: str, value: float) -> None:
    """Python's JSON has NaN and Infinity."""
    save(llama(), tmp_path)
    edit_json(tmp_path / "config.json", **{"rope_parameters": None, field: value})
    with pytest.raises(SourceError, match=f"{field} is {value}, not a finite number"):
        load_checkpoint(str(tmp_path))


def test_rope_theta_of_older_configurations_is_read(tmp_path: Path) -> None:
    model = llama(rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    save(model, tmp_path)
    edit_json(tmp_path / "config.json", rope_parameters=None, rope_theta=100000, rope_scaling=None)
    assert "rope_parameters" not in json.loads((tmp_path / "config.json").read_text())
    assert_equal_logits(model, tmp_path)


def test_sharded_weights_are_loaded(tmp_path: Path) -> None:
    model = llama()
    save(model, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_becomes_fp32(tmp_path: Path, dtype: torch.dtype) -> None:
    save(llama().to(dtype), tmp_path)
    options: Any = {"dtype": torch.float32, "attn_implementation": "eager"}
    assert_equal_logits(LlamaForCausalLM.from_pretrained(tmp_path, **options), tmp_path)


def test_special_tokens_chat_template_and_task(tmp_path: Path) -> None:
    save(llama(bos_token_id=2), tmp_path)
    edit_json(tmp_path / "generation_config.json", eos_token_id=[3, 5])
    edit_json(tmp_path / "tokenizer_config.json", chat_template="{{ messages[0].content }}")
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.special_tokens.eos == (3, 5)
    assert checkpoint.special_tokens.bos == 2
    assert checkpoint.tasks == (Task.GENERATE,)
    assert checkpoint.chat_template == "{{ messages[0].content }}"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}")
    assert load_checkpoint(str(tmp_path)).chat_template == "{{ bos_token }}"


def test_chat_templates_have_the_tokenizers_special_tokens(tmp_path: Path) -> None:
    # As in DeepSeek-R1-Distill-Qwen, whose bos_token_id is that of the end token.
    save(llama(bos_token_id=3, eos_token_id=3), tmp_path)
    edit_json(tmp_path / "generation_config.json", eos_token_id=[3, 5])
    named = {"bos_token": {"content": "w2", "lstrip": False}, "eos_token": "w1"}
    edit_json(tmp_path / "tokenizer_config.json", **named)
    special = load_checkpoint(str(tmp_path)).special_tokens
    assert special.bos == WORDS.index("w2")
    assert special.eos == (5, 3)
    path = tmp_path / "tokenizer_config.json"
    path.write_text('{"bos_token": null}')
    special = load_checkpoint(str(tmp_path)).special_tokens
    assert special.bos is None
    assert special.eos == (3, 5)


def test_default_chat_template_is_selected(tmp_path: Path) -> None:
    save(llama(), tmp_path)
    templates = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    edit_json(tmp_path / "tokenizer_config.json", chat_template=templates)
    assert load_checkpoint(str(tmp_path)).chat_template == "b"
    edit_json(tmp_path / "tokenizer_config.json", chat_template={"tools": "a", "default": "c"})
    assert load_checkpoint(str(tmp_path)).chat_template == "c"


def test_generation_settings_suppress_tokens(tmp_path: Path) -> None:
    save(llama(), tmp_path)
    path = tmp_path / "generation_config.json"
    edit_json(path, suppress_tokens=[5, 6], bad_words_ids=[[7]])
    assert load_checkpoint(str(tmp_path)).special_tokens.suppressed == (5, 6, 7)


def test_suppressed_tokens_beyond_the_vocabulary_are_rejected(tmp_path: Path) -> None:
    save(llama(), tmp_path)
    edit_json(tmp_path / "generation_config.json", suppress_tokens=[5, 9999])
    with pytest.raises(SourceError, match=r"special token suppressed has the id 9999, but"):
        load_checkpoint(str(tmp_path))


def test_ids_of_a_class_beyond_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    """As GPT-2's 50256 in models with fewer tokens."""
    save(llama(), tmp_path)
    changes = {"bos_token_id": 50256, "eos_token_id": [50256, 5], "pad_token_id": 50256}
    for name in ("config.json", "generation_config.json"):
        edit_json(tmp_path / name, **changes)
    edit_json(tmp_path / "tokenizer_config.json", bos_token=None, eos_token=None)
    special = load_checkpoint(str(tmp_path)).special_tokens
    assert (special.eos, special.bos, special.pad) == ((5,), None, 5)


def test_a_model_without_padding(tmp_path: Path) -> None:
    """Folders of the first Llama say -1."""
    model = llama()
    save(model, tmp_path)
    edit_json(tmp_path / "config.json", pad_token_id=-1)
    assert LlamaForCausalLM.from_pretrained(tmp_path).config.pad_token_id == -1
    special = load_checkpoint(str(tmp_path)).special_tokens
    assert special.pad == special.eos[0]
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_type": "proportional"}}, "rope_type 'proportional'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "x"}}, "rope_type 'x' is not"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: 'silu'"),
        ({"architectures": ["LlamaForMaskedLM"]}, "supported: LlamaForCausalLM"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported: "),
    ],
)
def test_unsupported_configuration_is_rejected(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(llama(), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError) as caught:
        load_checkpoint(str(tmp_path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"hidden_size": "64"}, "config.json: hidden_size is of type str, not int"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, not in 0 to 1024"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": 5, "head_dim": None}, "5 heads do not divide the size 64"),
        ({"num_key_value_heads": 3}, "3 key-value heads do not divide 4"),
        ({"eos_token_id": -1}, "eos_token_id is not an id"),
    ],
)
def test_invalid_configuration_error_names_the_field(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(llama(), tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(SourceError) as caught:
        load_checkpoint(str(tmp_path))
    assert message in str(caught.value)


def test_all_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    save(llama(), tmp_path)
    missing = ("lm_head.weight", "model.layers.0.mlp.up_proj.weight")
    unexpected = ("model.layers.0.self_attn.q_norm.weight", "model.layers.2.mlp.up_proj.weight")
    edit_weights(tmp_path, remove=missing, add=unexpected)
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(tmp_path))
    lines = str(caught.value).splitlines()[1:]
    assert sorted(lines) == sorted(
        [f"missing: {name}" for name in missing] + [f"unexpected: {name}" for name in unexpected]
    )


def test_qkv_weights_of_the_wrong_shape_are_named(tmp_path: Path) -> None:
    save(llama(), tmp_path)
    name = "model.layers.1.self_attn.v_proj.weight"
    edit_weights(tmp_path, remove=(name,), add=(name,))
    with pytest.raises(WeightsError, match=rf"wrong shapes: .*{name} \[2\]"):
        load_checkpoint(str(tmp_path))
