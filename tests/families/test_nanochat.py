"""nanochat against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NanoChatConfig, NanoChatForCausalLM

from tests.families.gated import AXES, SMALL
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "attention_bias": st.booleans(),
            "final_logit_softcapping": st.sampled_from((None, 0.5, 15.0)),
            "head_dim": st.sampled_from((16, 24)),
            "hidden_act": st.sampled_from(("relu2", "gelu")),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(NanoChatForCausalLM(NanoChatConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("nanochat", NanoChatForCausalLM(NanoChatConfig(**SMALL)))
