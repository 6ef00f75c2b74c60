"""Shared by the tests of Llama-like decoders."""

from typing import Any

import torch
from hypothesis import strategies as st

from tests.families.harness import VOCABULARY_SIZE

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
# Test axes common to all of them.
AXES: dict[str, st.SearchStrategy[Any]] = {
    "num_key_value_heads": st.sampled_from((1, 2, 4)),
    "tie_word_embeddings": st.booleans(),
    "rms_norm_eps": st.sampled_from((1e-6, 1e-2)),
}
# Shorter than the prompts, so that the window has an effect.
WINDOWS = st.sampled_from((3, 8))


def layer_types(num_layers: int = 2) -> st.SearchStrategy[list[str]]:
    """Any pattern of full and sliding attention."""
    kinds = st.sampled_from(("full_attention", "sliding_attention"))
    return st.lists(kinds, min_size=num_layers, max_size=num_layers)


def with_choice_bias(model: Any) -> Any:
    """``model`` with random biases of experts, which have no gradients and so stay 0."""
    generator = torch.Generator().manual_seed(0)
    for name, bias in model.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            bias.copy_(0.3 * torch.randn(bias.shape, generator=generator))
    return model
