"""BART's classes that read a text with both stacks, against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import BartConfig, BartForQuestionAnswering, BartForSequenceClassification

from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, randomise, save
from tests.families.harness import check_eager, check_graphs
from tests.families.rereaders import NLI, check_answers, check_classifies
from tests.families.test_bart import SMALL

END = SMALL["eos_token_id"]


def model_of(**changes: Any) -> Any:
    return BartForSequenceClassification(BartConfig(**SMALL | {"id2label": NLI} | changes))


def last_hidden(model: Any, ids: Tensor) -> Tensor:
    hidden: Tensor = model.model(ids).last_hidden_state
    return hidden


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "encoder_layers": st.integers(1, 3),
            "decoder_layers": st.integers(1, 3),
            "encoder_attention_heads": st.sampled_from((1, 2, 8)),
            "decoder_attention_heads": st.sampled_from((1, 4)),
            "scale_embedding": st.booleans(),
            "decoder_start_token_id": st.integers(0, 9),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(model_of(**changes), expected=last_hidden)


def test_graphs_match_transformers() -> None:
    check_graphs(
        "BART, classifier",
        model_of(),
        expected=lambda model, ids: model.classification_head(last_hidden(model, ids)[:, -1]),
    )


def test_classifies_by_the_end_of_each_text(tmp_path: Path) -> None:
    check_classifies(model_of(), tmp_path, (END,), SMALL["pad_token_id"])


def test_answers() -> None:
    check_answers(BartForQuestionAnswering(BartConfig(**SMALL | {"num_labels": 2})))


@pytest.mark.parametrize("name", ["model.encoder.embed_tokens.weight", "final_logits_bias"])
def test_weights_that_older_versions_saved(name: str, tmp_path: Path) -> None:
    model = randomise(model_of())
    expected = load_checkpoint(str(save(model, tmp_path)))
    value = model.model.shared.weight.detach().clone() if "embed" in name else torch.zeros(1, 61)
    edit_weights(tmp_path, values={name: value})
    edit_json(tmp_path / "config.json", classif_dropout=0.0, normalize_before=False)
    found = load_checkpoint(str(tmp_path))
    assert all(torch.equal(found.weights[n], x) for n, x in expected.weights.items())
