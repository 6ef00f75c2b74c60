"""GPT-2 against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "n_positions": 96,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "n_head": st.sampled_from((1, 2, 8, 16)),
            "n_inner": st.sampled_from((None, 80)),
            "activation_function": st.sampled_from(("gelu_new", "gelu", "relu")),
            "scale_attn_weights": st.booleans(),
            "scale_attn_by_inverse_layer_idx": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "layer_norm_epsilon": st.sampled_from((1e-5, 1e-2)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GPT2LMHeadModel(GPT2Config(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    changes = {"n_head": 16, "scale_attn_by_inverse_layer_idx": True}  # heads of size 4
    model = GPT2LMHeadModel(GPT2Config(**SMALL | changes))
    check_graphs("GPT-2", model)
