"""RoBERTa and XLM-RoBERTa against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RobertaConfig, RobertaModel, XLMRobertaConfig, XLMRobertaModel

from tests.families.encoders import SEGMENTED, SMALL, hidden_by_place, mean_by_place
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=6, deadline=None)
@given(st.fixed_dictionaries({**SEGMENTED, "pad_token_id": st.integers(0, 2)}))
def test_eager(changes: dict[str, Any]) -> None:
    check_eager(RobertaModel(RobertaConfig(**SMALL | changes)), expected=hidden_by_place)


def test_graphs() -> None:
    check_graphs("RoBERTa", RobertaModel(RobertaConfig(**SMALL)), expected=mean_by_place)


def test_xlm_roberta() -> None:
    check_eager(XLMRobertaModel(XLMRobertaConfig(**SMALL)), expected=hidden_by_place)
