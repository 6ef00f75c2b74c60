"""RoBERTa and XLM-RoBERTa against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RobertaConfig, RobertaModel, XLMRobertaConfig, XLMRobertaModel

from tests.families.encoders import (
    SEGMENTED,
    SMALL,
    hidden_with_consecutive_positions,
    mean_with_consecutive_positions,
)
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=6)
@given(st.fixed_dictionaries({**SEGMENTED, "pad_token_id": st.integers(0, 2)}))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(
        RobertaModel(RobertaConfig(**SMALL | changes)), expected=hidden_with_consecutive_positions
    )


def test_graphs_match_transformers() -> None:
    check_graphs(
        "RoBERTa", RobertaModel(RobertaConfig(**SMALL)), expected=mean_with_consecutive_positions
    )


def test_xlm_roberta_eager_matches_transformers() -> None:
    check_eager(
        XLMRobertaModel(XLMRobertaConfig(**SMALL)), expected=hidden_with_consecutive_positions
    )
