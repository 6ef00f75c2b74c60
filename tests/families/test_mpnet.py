"""MPNet against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MPNetConfig, MPNetModel

from tests.families.encoders import (
    AXES,
    SMALL,
    hidden_with_consecutive_positions,
    mean_with_consecutive_positions,
)
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=6)
@given(st.fixed_dictionaries(AXES))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(
        MPNetModel(MPNetConfig(**SMALL | changes)), expected=hidden_with_consecutive_positions
    )


def test_graphs_match_transformers() -> None:
    check_graphs(
        "MPNet", MPNetModel(MPNetConfig(**SMALL)), expected=mean_with_consecutive_positions
    )
