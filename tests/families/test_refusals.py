"""Unsupported configurations of decoders; errors name the field."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoConfig,
    OlmoeConfig,
    OlmoeForCausalLM,
    OlmoForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from export.errors import ExportError, SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, save
from tests.families.gated import SMALL

SIZES: dict[str, Any] = {"vocab_size": 61, "n_embd": 32, "n_layer": 1, "n_head": 2}
OPT: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": 1}


def small_model(family: str) -> Any:
    """A small model of ``family``."""
    models = {
        "bloom": lambda: BloomForCausalLM(
            BloomConfig(vocab_size=61, hidden_size=32, n_layer=1, n_head=2)
        ),
        "cohere2": lambda: Cohere2ForCausalLM(Cohere2Config(**SMALL)),
        "exaone4": lambda: Exaone4ForCausalLM(Exaone4Config(**SMALL)),
        "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, head_dim=16)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SIZES)),
        "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=2)),
        "olmo": lambda: OlmoForCausalLM(OlmoConfig(**SMALL)),
        "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SMALL)),
        "olmo3": lambda: Olmo3ForCausalLM(Olmo3Config(**SMALL)),
        "olmoe": lambda: OlmoeForCausalLM(OlmoeConfig(**SMALL, num_experts=2)),
        "opt": lambda: OPTForCausalLM(OPTConfig(**OPT, num_attention_heads=2)),
        "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SMALL)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)),
        "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**SMALL)),
        "stablelm": lambda: StableLmForCausalLM(StableLmConfig(**SMALL)),
        "starcoder2": lambda: Starcoder2ForCausalLM(Starcoder2Config(**SMALL)),
    }
    return models[family]()


HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
LONG = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}


@pytest.mark.parametrize(
    ("family", "changes", "error", "message"),
    [
        (
            "bloom",
            {"apply_residual_connection_post_layernorm": True},
            UnsupportedError,
            "apply_residual_connection_post_layernorm True is not supported",
        ),
        (
            "gemma3",
            {"attn_logit_softcapping": 5.0},
            UnsupportedError,
            "attn_logit_softcapping 5.0 is not supported",
        ),
        (
            "gemma3",
            {"use_bidirectional_attention": True},
            UnsupportedError,
            "tokens see those after them, so Gemma3ForCausalLM generates no text",
        ),
        ("cohere2", {"hidden_act": "selu"}, UnsupportedError, "'selu' is not supported"),
        ("exaone4", {"layer_types": ["full_attention"]}, SourceError, "1 layer_types for 2 layers"),
        ("gemma3", {"layer_types": ["full_attention"]}, SourceError, "1 layer_types for 2 layers"),
        ("gpt2", {"add_cross_attention": True}, UnsupportedError, "add_cross_attention True"),
        ("gpt2", {"activation_function": "selu"}, UnsupportedError, "'selu' is not supported"),
        ("mixtral", {"num_experts_per_tok": 3}, SourceError, "3 active of 2 experts"),
        ("olmo", {"clip_qkv": -1.0}, SourceError, "clip_qkv is -1.0"),
        ("olmo2", {"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu' is not supported"),
        ("olmoe", {"num_experts_per_tok": 3}, SourceError, "3 active of 2 experts"),
        (
            "opt",
            {"layer_norm_elementwise_affine": False},
            UnsupportedError,
            "layer_norm_elementwise_affine False is not supported",
        ),
        ("phi3", {"rope_parameters": LONG}, SourceError, "the number of factors is not 8"),
        (
            "qwen3",
            {"layer_types": ["full_attention", "chunked_attention"]},
            UnsupportedError,
            "layer_types 'chunked_attention' is not supported",
        ),
        (
            "qwen3",
            {"rope_parameters": {"rope_type": "linear", "factor": 0.0}},
            SourceError,
            "factor is 0.0",
        ),
        (
            "olmo3",
            {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500_000.0}},
            UnsupportedError,
            "rope_parameters without full_attention or sliding_attention",
        ),
        (
            "smollm3",
            {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4},
            UnsupportedError,
            "layer_types with sliding_attention",
        ),
        ("smollm3", {"no_rope_layers": [1]}, SourceError, "1 no_rope_layers, 2 layers"),
        (
            "stablelm",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.2}},
            SourceError,
            "cannot rotate 3 of 16 dimensions",
        ),
        *(
            (family, changes, UnsupportedError, "partial_rotary_factor 0.5 is not supported")
            for family in ("cohere2", "exaone4", "olmo2", "qwen3", "smollm3", "starcoder2")
            for changes in ({"partial_rotary_factor": 0.5}, {"rope_parameters": HALF})
        ),
        ("starcoder2", {"norm_type": "rms_norm"}, UnsupportedError, "norm_type 'rms_norm'"),
    ],
)
def test_unsupported_field_is_named(
    tmp_path: Path, family: str, changes: dict[str, Any], error: type[ExportError], message: str
) -> None:
    save(small_model(family), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error) as caught:
        load_checkpoint(str(tmp_path))
    assert message in str(caught.value)


def test_missing_and_unexpected_expert_weights_are_listed(tmp_path: Path) -> None:
    save(small_model("mixtral"), tmp_path)
    missing = "model.layers.1.block_sparse_moe.experts.1.w3.weight"
    unexpected = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    edit_weights(tmp_path, remove=(missing,), add=(unexpected,))
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(tmp_path))
    assert str(caught.value).splitlines()[1:] == [
        f"missing: {missing}",
        f"unexpected: {unexpected}",
    ]


def test_saved_frequencies_of_rotary_positions_are_ignored(tmp_path: Path) -> None:
    save(small_model("stablelm"), tmp_path)
    edit_weights(tmp_path, add=("model.layers.1.self_attn.rotary_emb.inv_freq",))
    assert load_checkpoint(str(tmp_path)).architecture == "StableLmForCausalLM"
