"""XGLM and BioGPT against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BioGptConfig, BioGptForCausalLM, XGLMConfig, XGLMForCausalLM

from tests.families.gated import SMALL
from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

XGLM: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "d_model": 64,
    "ffn_dim": 96,
    "num_layers": 2,
    "attention_heads": 4,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
ALIKE = SMALL | {"num_key_value_heads": 4}  # BioGPT has no others
AXES = {"scale_embedding": st.booleans(), "tie_word_embeddings": st.booleans()}


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES | {"activation_function": st.sampled_from(("gelu", "relu"))}))
def test_xglm_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(XGLMForCausalLM(XGLMConfig(**XGLM | changes)))


def test_xglm_graphs_match_transformers() -> None:
    check_graphs("XGLM", XGLMForCausalLM(XGLMConfig(**XGLM)))


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES | {"hidden_act": st.sampled_from(("gelu", "relu"))}))
def test_biogpt_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(BioGptForCausalLM(BioGptConfig(**ALIKE | changes)))


def test_biogpt_graphs_match_transformers() -> None:
    check_graphs("BioGPT", BioGptForCausalLM(BioGptConfig(**ALIKE)))
