"""SmolLM3 against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from tests.families.gated import AXES, SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "no_rope_layers": st.none() | st.lists(st.integers(0, 1), min_size=2, max_size=2),
            "no_rope_layer_interval": st.integers(1, 3),
            "use_sliding_window": st.booleans(),
            "sliding_window": WINDOWS,
            "attention_bias": st.booleans(),
            "mlp_bias": st.booleans(),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(SmolLM3ForCausalLM(SmolLM3Config(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    changes: dict[str, Any] = {
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 6,
    }
    check_graphs("SmolLM3", SmolLM3ForCausalLM(SmolLM3Config(**SMALL, **changes)))
