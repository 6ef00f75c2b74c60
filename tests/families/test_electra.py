"""ELECTRA against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ElectraConfig, ElectraForPreTraining, ElectraModel

from tests.families.encoders import FACTORISED, SMALL
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=6)
@given(st.fixed_dictionaries(FACTORISED))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(ElectraModel(ElectraConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("ELECTRA", ElectraModel(ElectraConfig(**SMALL, embedding_size=24)))


def test_eager_discriminator_matches_transformers() -> None:
    check_eager(ElectraForPreTraining(ElectraConfig(**SMALL)))
