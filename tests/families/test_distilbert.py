"""DistilBERT against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DistilBertConfig, DistilBertModel

from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 80,
    "max_position_embeddings": 32,
}


@settings(max_examples=6)
@given(
    st.fixed_dictionaries(
        {
            "n_layers": st.integers(1, 3),
            "n_heads": st.sampled_from((1, 2, 8)),
            "hidden_dim": st.sampled_from((48, 96)),
            "activation": st.sampled_from(("gelu", "gelu_new", "relu")),
            "sinusoidal_pos_embds": st.booleans(),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(DistilBertModel(DistilBertConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("DistilBERT", DistilBertModel(DistilBertConfig(**SMALL)))
