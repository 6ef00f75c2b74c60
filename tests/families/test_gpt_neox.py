"""GPT-NeoX against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "num_attention_heads": st.sampled_from((1, 2)),
            "hidden_size": st.sampled_from((64, 80)),
            "rotary_pct": st.sampled_from((0.25, 0.5, 1.0)),
            "rotary_emb_base": st.sampled_from((100, 10_000)),
            "use_parallel_residual": st.booleans(),
            "attention_bias": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "hidden_act": st.sampled_from(("gelu", "gelu_new")),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("GPT-NeoX", GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL)))
