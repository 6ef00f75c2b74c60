"""Nemotron against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NemotronConfig, NemotronForCausalLM

from tests.families.gated import SMALL
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "num_key_value_heads": st.sampled_from((1, 2, 4)),
            "head_dim": st.sampled_from((None, 24)),
            "partial_rotary_factor": st.sampled_from((0.25, 0.5, 1.0)),
            "attention_bias": st.booleans(),
            "mlp_bias": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "norm_eps": st.sampled_from((1e-5, 1e-2)),
            "hidden_act": st.sampled_from(("relu2", "silu")),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(NemotronForCausalLM(NemotronConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("Nemotron", NemotronForCausalLM(NemotronConfig(**SMALL)))
