"""Shared by the tests of decoders whose configurations have GPT-2's names."""

from typing import Any

from hypothesis import strategies as st

from tests.families.harness import VOCABULARY_SIZE

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 96,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
AXES: dict[str, st.SearchStrategy[Any]] = {
    "n_inner": st.sampled_from((None, 96)),
    "layer_norm_epsilon": st.sampled_from((1e-5, 1e-2)),
    "activation_function": st.sampled_from(("gelu_new", "gelu", "relu")),
}
