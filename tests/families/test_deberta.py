"""DeBERTa, of all versions, against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DebertaConfig, DebertaModel, DebertaV2Config, DebertaV2Model

from tests.families.encoders import AXES, SMALL
from tests.families.harness import check_eager, check_graphs

# Texts have up to 13 tokens: from buckets of one distance each to distances beyond the last.
V3: dict[str, Any] = {
    "relative_attention": True,
    "position_buckets": 8,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}


@settings(max_examples=15)
@given(
    st.fixed_dictionaries(
        {
            **AXES,
            "relative_attention": st.sampled_from((True, True, True, False)),
            "position_buckets": st.sampled_from((-1, 4, 5, 8, 16)),
            "max_relative_positions": st.sampled_from((-1, 10, 12)),
            "norm_rel_ebd": st.sampled_from(("none", "layer_norm")),
            "share_att_key": st.booleans(),
            "pos_att_type": st.sampled_from((["c2p"], ["p2c"], ["p2c", "c2p"], "c2p|p2c")),
            "position_biased_input": st.booleans(),
            "type_vocab_size": st.integers(0, 2),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(DebertaV2Model(DebertaV2Config(**SMALL | V3 | changes)))


def test_graphs_match_transformers() -> None:
    # Heads of 4 dimensions, which are padded to 8.
    config = DebertaV2Config(**SMALL | V3 | {"num_attention_heads": 16})
    check_graphs("DeBERTa v3", DebertaV2Model(config))


V1: dict[str, Any] = {
    "relative_attention": True,
    "max_relative_positions": -1,
    "pos_att_type": "c2p|p2c",
    "position_biased_input": False,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            **AXES,
            "relative_attention": st.sampled_from((True, True, True, False)),
            "max_relative_positions": st.sampled_from((-1, 5, 12)),
            "pos_att_type": st.sampled_from((["c2p"], ["p2c"], ["p2c", "c2p"], "c2p|p2c")),
            "position_biased_input": st.booleans(),
            "type_vocab_size": st.integers(0, 2),
        }
    )
)
def test_eager_v1_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(DebertaModel(DebertaConfig(**SMALL | V1 | changes)))


def test_v1_graphs_match_transformers() -> None:
    check_graphs("DeBERTa", DebertaModel(DebertaConfig(**SMALL | V1)))
