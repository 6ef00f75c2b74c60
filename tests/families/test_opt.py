"""OPT against transformers, including the variant of OPT-350m."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import OPTConfig, OPTForCausalLM

from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "do_layer_norm_before": st.booleans(),
            "_remove_final_layer_norm": st.booleans(),
            "word_embed_proj_dim": st.sampled_from((32, 64)),
            "enable_bias": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "activation_function": st.sampled_from(("relu", "gelu")),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(OPTForCausalLM(OPTConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("OPT", OPTForCausalLM(OPTConfig(**SMALL)))


def test_graphs_with_embedding_projections_match_transformers() -> None:
    config = OPTConfig(**SMALL, do_layer_norm_before=False, word_embed_proj_dim=32)
    check_graphs("OPT", OPTForCausalLM(config))
