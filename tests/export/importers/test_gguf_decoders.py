"""Other decoders from GGUF against transformers.

Models are written as llama.cpp converts them: names of the gguf package's own table, and the
changes of weights in its converter (``conversion/*.py``), which each test states.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
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
from export.sources import load_checkpoint
from tests.export.importers.support import logits, random_ids, randomise
from tests.export.importers.test_llama_gguf import (
    MERGES,
    NUM_HEADS,
    NUM_KV_HEADS,
    TOKENS,
    add_tensor,
    interleave,
)

NUM_LAYERS = 2
SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SIZES: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": NUM_LAYERS,
    "attention.head_count": NUM_HEADS,
    "attention.head_count_kv": NUM_KV_HEADS,
}
RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": [3, 3, 3, 4] + [1] * (len(TOKENS) - 4),
    "tokenizer.ggml.eos_token_id": 2,
}
Change = Callable[[str, np.ndarray], np.ndarray]
Tensors = dict[str, np.ndarray]


def unchanged(_name: str, weight: np.ndarray) -> np.ndarray:
    return weight


def plus_one(name: str, weight: np.ndarray) -> np.ndarray:
    """Gemma: norms are written as what they multiply by."""
    return weight + 1 if name.endswith("norm.weight") else weight


def permuted(name: str, weight: np.ndarray) -> np.ndarray:
    """Llama and Granite: the halves of each head's rows are interleaved."""
    heads = {"q_proj": NUM_HEADS, "k_proj": NUM_KV_HEADS}
    found = next((heads[part] for part in heads if f"{part}.weight" in name), None)
    return weight if found is None else interleave(weight, found)


def transposed(name: str, weight: np.ndarray) -> np.ndarray:
    """GPT-2: its matrices are ``[inputs, outputs]``."""
    return weight.T if ".c_" in name and weight.ndim == 2 else weight


def ungrouped(num_groups: int) -> Change:
    """GPT-NeoX and Falcon: queries, keys and values are sorted."""

    def change(name: str, weight: np.ndarray) -> np.ndarray:
        if "query_key_value" not in name:
            return weight
        groups = weight.reshape(num_groups, -1, 64 // NUM_HEADS, *weight.shape[1:])
        parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
        return np.concatenate([part.reshape(-1, *weight.shape[1:]) for part in parts])

    return change


def per_head_norms(tensors: Tensors) -> Tensors:
    """StableLM: the norms of heads are stacked."""
    stacked = {name: x for name, x in tensors.items() if ".norms." not in name}
    for layer in range(NUM_LAYERS):
        for kind, heads in (("q", NUM_HEADS), ("k", NUM_KV_HEADS)):
            prefix = f"model.layers.{layer}.self_attn.{kind}_layernorm"
            each = [f"{prefix}.norms.{head}.weight" for head in range(heads)]
            if each[0] in tensors:
                stacked[f"{prefix}.weight"] = np.stack([tensors[name] for name in each])
    return stacked


def check(
    path: Path,
    model: Any,
    family: str,
    metadata: dict[str, Any],
    change: Change = unchanged,
    *,
    tied: bool = False,
    extra: dict[str, Any] | None = None,
) -> Any:
    """Writes ``model`` and compares the imported one with it."""
    model.set_attn_implementation("eager")
    values = TOKENIZER | {f"{family}.{name}": x for name, x in (SIZES | metadata).items()}
    writer = gguf.GGUFWriter(path, family)
    add: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32}
    add |= {float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    for name, value in values.items():
        if value is not None:
            add[type(value)](name, value)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[family], NUM_LAYERS)
    tensors = {name: weight.numpy() for name, weight in model.state_dict().items()}
    for name, weight in per_head_norms(tensors).items():
        if name == "lm_head.weight" and tied:
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        add_tensor(writer, target, change(name, weight), None)
    for name, values_ in (extra or {}).items():
        add_tensor(writer, name, np.array(values_, np.float32), None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = load_checkpoint(str(path))
    ids = random_ids(3, 19) % len(TOKENS)
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(logits(checkpoint, ids), expected, rtol=0, atol=1e-4)
    return checkpoint


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


def test_every_sixth_layer_of_gemma3_has_full_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.NUM_LAYERS", 7)
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


ROPE = {"rope_type": "default", "rope_theta": 5e4}


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
