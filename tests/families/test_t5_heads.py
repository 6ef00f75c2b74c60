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

from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import pooled, randomise, save
from tests.families.harness import check_eager, check_graphs, imported
from tests.families.test_t5 import SMALL

NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}
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
    model = randomise(classifier(family)).eval()
    checkpoint = load_checkpoint(str(save(model, tmp_path)))
    assert (checkpoint.tasks, checkpoint.labels) == ((Task.CLASSIFY,), tuple(NLI.values()))
    lengths = torch.tensor([9, 6, 3])
    ids = torch.randint(5, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    for row, length in zip(ids, lengths, strict=True):
        row[length - 1] = END
        row[length:] = 0
    with torch.no_grad():
        mask = (torch.arange(9) < lengths[:, None]).long()
        expected = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(pooled(checkpoint, ids, lengths), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers(family: str) -> None:
    config, _, model_class = FAMILIES[family]
    model = model_class(config(**SMALL | {"num_labels": 2})).eval()
    with imported(model) as checkpoint:
        assert checkpoint.tasks == (Task.ANSWER,)
        ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
        found = model(ids)
        expected = torch.stack([found.start_logits, found.end_logits], -1)
        actual = pooled(checkpoint, ids, torch.tensor([9, 9]))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
