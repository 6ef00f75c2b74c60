"""Other decoders from GGUF against transformers."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from export.errors import SourceError
from tests.export.importers.gguf_files import (
    LAYER,
    NUM_LAYERS,
    RMS,
    SHAPE,
    check,
    permuted,
    plus_one,
    transposed,
    ungrouped,
)
from tests.export.importers.support import randomise
from tests.export.importers.test_llama_gguf import NUM_HEADS, TOKENS

ROPE = {"rope_type": "default", "rope_theta": 5e4}


def test_gemma_matches_transformers(tmp_path: Path) -> None:
    model = randomise(GemmaForCausalLM(GemmaConfig(**SHAPE, head_dim=32)))
    metadata = {RMS: 1e-6, "attention.key_length": 32, "attention.value_length": 32}
    check(tmp_path / "model.gguf", model, "gemma", metadata, plus_one, tied=True)


def test_gemma2_matches_transformers(tmp_path: Path) -> None:
    config = Gemma2Config(**SHAPE, head_dim=32, query_pre_attn_scalar=32, sliding_window=5)
    metadata = {
        RMS: 1e-6,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 5,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }
    model = randomise(Gemma2ForCausalLM(config))
    check(tmp_path / "model.gguf", model, "gemma2", metadata, plus_one, tied=True)


def test_gemma3_matches_transformers(tmp_path: Path) -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = Gemma3TextConfig(
        **SHAPE,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=5,
        layer_types=["sliding_attention"] * NUM_LAYERS,  # the first full one would be the sixth
        rope_parameters=rope,
    )
    metadata = {
        RMS: 1e-6,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 5,
        "rope.freq_base": 1e6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    model = randomise(Gemma3ForCausalLM(config))
    check(tmp_path / "model.gguf", model, "gemma3", metadata, plus_one, tied=True)


def test_every_sixth_layer_of_gemma3_has_full_attention(tmp_path: Path) -> None:
    shape = SHAPE | {"num_hidden_layers": 7}
    config = Gemma3TextConfig(**shape, head_dim=16, query_pre_attn_scalar=16, sliding_window=5)
    metadata = {
        RMS: 1e-6,
        "block_count": 7,
        "attention.sliding_window": 5,
        "rope.freq_base": 1e6,
    }
    model = randomise(Gemma3ForCausalLM(config))
    checkpoint = check(tmp_path / "model.gguf", model, "gemma3", metadata, plus_one, tied=True)
    windows = [layer.attention.window for layer in checkpoint.config.decoder.layers]
    assert windows == [5, 5, 5, 5, 5, None, 5]


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_phi3_matches_transformers(tmp_path: Path, fraction: float) -> None:
    size = int(16 * fraction)
    factors = [1 + 0.1 * index for index in range(size // 2)]
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "partial_rotary_factor": fraction,
        "short_factor": factors,
        "long_factor": [4.0 * factor for factor in factors],
        "original_max_position_embeddings": 32,
    }
    config = Phi3Config(**SHAPE, rope_parameters=rope, original_max_position_embeddings=32)
    metadata = {
        RMS: 1e-5,
        "attention.sliding_window": 0,
        "rope.dimension_count": size,
        "rope.scaling.original_context_length": 32,
    }
    extra = {"rope_factors_short.weight": factors, "rope_factors_long.weight": rope["long_factor"]}
    model = randomise(Phi3ForCausalLM(config))
    checkpoint = check(tmp_path / "model.gguf", model, "phi3", metadata, extra=extra)
    assert checkpoint.config.position.max_positions == 32


def test_phi3_with_a_window_matches_transformers(tmp_path: Path) -> None:
    model = randomise(Phi3ForCausalLM(Phi3Config(**SHAPE, sliding_window=5)))
    metadata = {RMS: 1e-5, "attention.sliding_window": 5, "rope.dimension_count": 16}
    check(tmp_path / "model.gguf", model, "phi3", metadata)


def test_phi2_matches_transformers(tmp_path: Path) -> None:
    model = randomise(PhiForCausalLM(PhiConfig(**SHAPE | {"num_key_value_heads": NUM_HEADS})))
    metadata = {LAYER: 1e-5, "attention.head_count_kv": NUM_HEADS, "rope.dimension_count": 8}
    check(tmp_path / "model.gguf", model, "phi2", metadata)


@pytest.mark.parametrize("bias", [True, False])
def test_starcoder2_matches_transformers(tmp_path: Path, bias: bool) -> None:
    config = Starcoder2Config(**SHAPE, use_bias=bias, rope_parameters=ROPE, sliding_window=None)
    model = randomise(Starcoder2ForCausalLM(config))
    metadata = {LAYER: 1e-5, "rope.freq_base": 5e4}
    check(tmp_path / "model.gguf", model, "starcoder2", metadata, tied=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_qkv_bias": True},
        {"qk_layernorm": True, "use_parallel_residual": True},
    ],
)
def test_stablelm_matches_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = randomise(StableLmForCausalLM(StableLmConfig(**SHAPE, **changes)))
    metadata = {
        LAYER: 1e-5,
        "rope.dimension_count": 4,
        "use_parallel_residual": changes.get("use_parallel_residual", False),
    }
    check(tmp_path / "model.gguf", model, "stablelm", metadata)


def test_olmo2_matches_transformers(tmp_path: Path) -> None:
    model = randomise(Olmo2ForCausalLM(Olmo2Config(**SHAPE, rope_parameters=ROPE)))
    check(tmp_path / "model.gguf", model, "olmo2", {RMS: 1e-5, "rope.freq_base": 5e4})


def test_granite_matches_transformers(tmp_path: Path) -> None:
    config = GraniteConfig(
        **SHAPE,
        embedding_multiplier=6.0,
        logits_scaling=4.0,
        residual_multiplier=0.3,
        attention_multiplier=0.1,
    )
    metadata = {
        RMS: 1e-6,
        "attention.scale": 0.1,
        "embedding_scale": 6.0,
        "residual_scale": 0.3,
        "logit_scale": 4.0,
    }
    check(
        tmp_path / "model.gguf",
        randomise(GraniteForCausalLM(config)),
        "granite",
        metadata,
        permuted,
    )


def test_gpt2_matches_transformers(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"n_embd": 64, "n_layer": NUM_LAYERS, "n_head": NUM_HEADS}
    config = GPT2Config(vocab_size=len(TOKENS), n_positions=64, n_inner=96, **sizes)
    metadata = {LAYER: 1e-5, "attention.head_count_kv": None}
    model = randomise(GPT2LMHeadModel(config))
    check(tmp_path / "model.gguf", model, "gpt2", metadata, transposed, tied=True)


@pytest.mark.parametrize("parallel", [True, False])
def test_gptneox_matches_transformers(tmp_path: Path, parallel: bool) -> None:
    config = GPTNeoXConfig(**SHAPE, use_parallel_residual=parallel)
    metadata = {
        LAYER: 1e-5,
        "attention.head_count_kv": None,
        "rope.dimension_count": 4,
        "use_parallel_residual": parallel,
    }
    model = randomise(GPTNeoXForCausalLM(config))
    check(tmp_path / "model.gguf", model, "gptneox", metadata, ungrouped(NUM_HEADS))


@pytest.mark.parametrize(
    ("num_groups", "changes"), [(1, {}), (2, {"new_decoder_architecture": True})]
)
def test_falcon_matches_transformers(
    tmp_path: Path, num_groups: int, changes: dict[str, Any]
) -> None:
    config = FalconConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_kv_heads=num_groups,
        ffn_hidden_size=96,
        **changes,
    )
    metadata = {LAYER: 1e-5, "attention.head_count_kv": num_groups}
    model = randomise(FalconForCausalLM(config))
    check(tmp_path / "model.gguf", model, "falcon", metadata, ungrouped(num_groups), tied=True)


@pytest.mark.parametrize("normalised", [True, False])
def test_command_r_matches_transformers(tmp_path: Path, normalised: bool) -> None:
    config = CohereConfig(**SHAPE, use_qk_norm=normalised, rope_parameters=ROPE)
    metadata = {
        LAYER: 1e-5,
        "logit_scale": 0.0625,
        "rope.freq_base": 5e4,
        "rope.scaling.type": "none",
    }
    model = randomise(CohereForCausalLM(config))
    check(tmp_path / "model.gguf", model, "command-r", metadata, tied=True)


def test_more_rotated_dimensions_than_a_head_has_are_refused(tmp_path: Path) -> None:
    model = randomise(PhiForCausalLM(PhiConfig(**SHAPE | {"num_key_value_heads": NUM_HEADS})))
    metadata = {LAYER: 1e-5, "attention.head_count_kv": NUM_HEADS, "rope.dimension_count": 18}
    with pytest.raises(SourceError, match=r"rope.dimension_count 18 does not fit 16"):
        check(tmp_path / "model.gguf", model, "phi2", metadata)
