"""ALBERT against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AlbertConfig, AlbertModel

from tests.families.encoders import FACTORISED, SMALL
from tests.families.harness import check_eager, check_graphs

SHARING = {
    "num_hidden_layers": st.just(5),
    "num_hidden_groups": st.integers(1, 5),
    "inner_group_num": st.integers(1, 2),
}


@settings(max_examples=8)
@given(st.fixed_dictionaries({**FACTORISED, **SHARING}))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(AlbertModel(AlbertConfig(**SMALL | changes)))


def test_graphs_store_shared_weights_once() -> None:
    model = AlbertModel(AlbertConfig(**SMALL | {"num_hidden_layers": 5, "embedding_size": 24}))
    size = check_graphs("ALBERT", model).bytes_by_precision["fp32"]
    parameter_bytes = 4 * sum(weight.numel() for weight in model.parameters())
    layer = 4 * sum(weight.numel() for weight in model.encoder.albert_layer_groups.parameters())
    # Nodes take less than one layer's bytes; four more copies of it would exceed the limit.
    assert size < parameter_bytes + 2 * layer
