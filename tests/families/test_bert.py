"""BERT, ERNIE and MegatronBERT against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertModel,
    ErnieConfig,
    ErnieModel,
    MegatronBertConfig,
    MegatronBertModel,
)

from tests.families.encoders import SEGMENTED, SMALL
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=6)
@given(st.fixed_dictionaries(SEGMENTED))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(BertModel(BertConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("BERT", BertModel(BertConfig(**SMALL)))


@settings(max_examples=4)
@given(st.fixed_dictionaries({**SEGMENTED, "use_task_id": st.booleans()}))
def test_eager_ernie_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(ErnieModel(ErnieConfig(**SMALL | changes)))


def test_ernie_graphs_match_transformers() -> None:
    check_graphs("ERNIE", ErnieModel(ErnieConfig(**SMALL, use_task_id=True)))


@settings(max_examples=4)
@given(st.fixed_dictionaries(SEGMENTED))
def test_eager_megatron_bert_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(MegatronBertModel(MegatronBertConfig(**SMALL | changes)))


def test_megatron_bert_graphs_match_transformers() -> None:
    check_graphs("MegatronBERT", MegatronBertModel(MegatronBertConfig(**SMALL)))
