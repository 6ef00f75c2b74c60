"""Classes of T5, mT5 and umT5 that read a text with both stacks, against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MT5Config,
    MT5ForQuestionAnswering,
    MT5ForSequenceClassification,
    T5Config,
    T5ForQuestionAnswering,
    T5ForSequenceClassification,
    UMT5Config,
    UMT5ForQuestionAnswering,
    UMT5ForSequenceClassification,
)

from tests.families.harness import check_eager, check_graphs
from tests.families.rereaders import NLI, check_answers, check_classifies
from tests.families.test_t5 import SMALL

END = 1
FAMILIES: dict[str, Any] = {
    "T5": (T5Config, T5ForSequenceClassification, T5ForQuestionAnswering),
    "mT5": (MT5Config, MT5ForSequenceClassification, MT5ForQuestionAnswering),
    "umT5": (UMT5Config, UMT5ForSequenceClassification, UMT5ForQuestionAnswering),
}


def classifier(family: str, **changes: Any) -> Any:
    config, model_class, _ = FAMILIES[family]
    return model_class(config(**SMALL | {"id2label": NLI, "eos_token_id": END} | changes))


def last_hidden(model: Any, ids: Tensor) -> Tensor:
    again = torch.cat([torch.full_like(ids[:, :1], SMALL["decoder_start_token_id"]), ids], 1)
    outputs = model.transformer(ids, decoder_input_ids=again[:, :-1])
    hidden: Tensor = outputs.last_hidden_state
    return hidden


@settings(max_examples=10)
@given(
    st.sampled_from(tuple(FAMILIES)),
    st.fixed_dictionaries(
        {
            "num_layers": st.integers(1, 3),
            "num_decoder_layers": st.integers(1, 3),
            "feed_forward_proj": st.sampled_from(("relu", "gated-gelu")),
            "relative_attention_num_buckets": st.sampled_from((4, 32)),
        }
    ),
)
def test_eager_matches_transformers(family: str, changes: dict[str, Any]) -> None:
    check_eager(classifier(family, **changes), expected=last_hidden)


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_match_transformers(family: str) -> None:
    check_graphs(
        f"{family}, classifier",
        classifier(family),
        expected=lambda model, ids: model.classification_head(last_hidden(model, ids)[:, -1]),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_classifies_by_the_end_of_each_text(family: str, tmp_path: Path) -> None:
    check_classifies(classifier(family), tmp_path, (END,), pad=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers(family: str) -> None:
    config, _, model_class = FAMILIES[family]
    check_answers(model_class(config(**SMALL | {"num_labels": 2})))
