"""RoBERTa and its successors against transformers."""

from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RobertaConfig, RobertaModel

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


SUCCESSORS = {
    "Camembert": "CamemBERT",
    "Data2VecText": "data2vec (texts)",
    "RobertaPreLayerNorm": "RoBERTa-PreLayerNorm",
    "XLMRoberta": "XLM-RoBERTa",
    "XLMRobertaXL": "XLM-RoBERTa XL",
}


def successor(family: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{family}Config")(**SMALL | changes)
    return getattr(transformers, f"{family}Model")(config)


@pytest.mark.parametrize("family", SUCCESSORS)
@settings(max_examples=3)
@given(st.fixed_dictionaries(SEGMENTED))
def test_eager_successor_matches_transformers(family: str, changes: dict[str, Any]) -> None:
    check_eager(successor(family, **changes), expected=hidden_with_consecutive_positions)


@pytest.mark.parametrize("family", SUCCESSORS)
def test_graphs_of_successor_match_transformers(family: str) -> None:
    # Many checkpoints have a single token type.
    model = successor(family, type_vocab_size=1)
    check_graphs(SUCCESSORS[family], model, expected=mean_with_consecutive_positions)
