"""EXAONE 4 against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Exaone4Config, Exaone4ForCausalLM

from tests.families.gated import AXES, SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs

WINDOWED = {
    "sliding_window": WINDOWS,
    "layer_types": st.none() | layer_types(),
    "sliding_window_pattern": st.sampled_from((2, 4)),
}
FULL = {"sliding_window": st.none(), "layer_types": st.just(["full_attention"] * 2)}


@settings(max_examples=12)
@given(st.fixed_dictionaries(AXES | WINDOWED) | st.fixed_dictionaries(AXES | FULL))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Exaone4ForCausalLM(Exaone4Config(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    types = ["sliding_attention", "full_attention"]
    config = Exaone4Config(**SMALL, sliding_window=6, layer_types=types)
    check_graphs("EXAONE 4", Exaone4ForCausalLM(config))
