"""SmolLM2 loaded by *transformers* from the same GGUF file, as a reference."""

from functools import cache
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import modeling_gguf_pytorch_utils as gguf_model

from export.sources import DEFAULT_SOURCES

EAGER: dict[str, Any] = {"attn_implementation": "eager"}
CONFIG = LlamaConfig(
    **EAGER,
    vocab_size=49152,
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    intermediate_size=1536,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    tie_word_embeddings=True,
)


@cache
def gguf_by_transformers() -> dict[str, Any]:
    """The file's ``tensors`` and ``tokenizer``, read by *transformers*."""
    path = DEFAULT_SOURCES["smollm2"].locate()
    load: Any = gguf_model.load_gguf_checkpoint
    with torch.device("meta"):
        model = LlamaForCausalLM(CONFIG)
    loaded: dict[str, Any] = load(path, return_tensors=True, model_to_load=model)
    return loaded


@cache
def smollm2_by_transformers() -> Any:
    """The model, ready to run."""
    model: Any = LlamaForCausalLM(CONFIG)
    missing = model.load_state_dict(gguf_by_transformers()["tensors"], strict=False).missing_keys
    assert missing == ["lm_head.weight"]  # tied
    return model.eval()
