"""HyperCLOVA X against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import HyperCLOVAXConfig, HyperCLOVAXForCausalLM

from tests.families.gated import AXES, SMALL
from tests.families.harness import check_eager, check_graphs
from tests.families.test_granite import MULTIPLIED, MULTIPLIERS


@settings(max_examples=15)
@given(
    st.fixed_dictionaries(
        AXES
        | MULTIPLIED
        | {
            "attention_bias": st.booleans(),
            "attention_multiplier": st.sampled_from((None, 0.1)),
            "head_dim": st.sampled_from((None, 24)),
            "mlp_bias": st.booleans(),
            "use_post_norm": st.booleans(),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(HyperCLOVAXForCausalLM(HyperCLOVAXConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    model = HyperCLOVAXForCausalLM(HyperCLOVAXConfig(**SMALL | MULTIPLIERS))
    check_graphs("HyperCLOVA X", model)
