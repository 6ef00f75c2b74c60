"""GGUF files of decoders, as llama.cpp converts them.

Names are those of the gguf package's own table; the changes of weights are those of llama.cpp's
converter (``conversion/*.py``), which each function states.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from export.sources import load_checkpoint
from tests.export.importers.support import logits, random_ids
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


def per_head_norms(tensors: Tensors, num_layers: int) -> Tensors:
    """StableLM: the norms of heads are stacked."""
    stacked = {name: x for name, x in tensors.items() if ".norms." not in name}
    for layer in range(num_layers):
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
    num_layers = model.config.num_hidden_layers
    names = gguf.get_tensor_name_map(kinds[family], num_layers)
    tensors = {name: weight.numpy() for name, weight in model.state_dict().items()}
    for name, weight in per_head_norms(tensors, num_layers).items():
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
