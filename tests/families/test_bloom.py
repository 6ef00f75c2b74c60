"""BLOOM against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BloomConfig, BloomForCausalLM

from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 96,
    "n_layer": 2,
    "n_head": 6,  # not a power of two: ALiBi interleaves two series of slopes
    "bos_token_id": 1,
    "eos_token_id": 1,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "n_head": st.sampled_from((1, 2, 3, 6, 12)),
            "tie_word_embeddings": st.booleans(),
            "layer_norm_epsilon": st.sampled_from((1e-5, 1e-2)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(BloomForCausalLM(BloomConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("BLOOM", BloomForCausalLM(BloomConfig(**SMALL)))
