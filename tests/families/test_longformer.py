"""Longformer against transformers, with its first token global."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LongformerConfig, LongformerModel

from tests.families.encoders import SEGMENTED, SMALL
from tests.families.harness import check_eager, check_graphs


def hidden(model: Any, ids: Tensor) -> Tensor:
    is_global = torch.zeros_like(ids)
    is_global[:, 0] = 1
    embeddings = model.get_input_embeddings()(ids)
    result: Tensor = model(
        inputs_embeds=embeddings, global_attention_mask=is_global
    ).last_hidden_state
    return result[:, : ids.shape[1]]


def mean(model: Any, ids: Tensor) -> Tensor:
    return hidden(model, ids).mean(1)


def longformer(**changes: Any) -> Any:
    return LongformerModel(LongformerConfig(**SMALL | {"max_position_embeddings": 80} | changes))


@settings(max_examples=8, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            **SEGMENTED,
            "num_hidden_layers": st.just(2),
            # Texts have up to 13 tokens.
            "attention_window": st.sampled_from((4, 6, [4, 32], [32, 8])),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(longformer(**changes), expected=hidden)


def test_graphs_match_transformers() -> None:
    check_graphs("Longformer", longformer(num_hidden_layers=1, attention_window=4), expected=mean)
