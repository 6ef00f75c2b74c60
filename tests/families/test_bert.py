"""BERT against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertModel

from tests.families.encoders import SEGMENTED, SMALL
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=6)
@given(st.fixed_dictionaries(SEGMENTED))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(BertModel(BertConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("BERT", BertModel(BertConfig(**SMALL)))
