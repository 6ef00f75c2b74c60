"""MobileBERT against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MobileBertConfig,
    MobileBertForMaskedLM,
    MobileBertForPreTraining,
    MobileBertForSequenceClassification,
    MobileBertModel,
)

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import eager, edit_json, pooled, random_ids, randomise, save
from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "embedding_size": 24,
    "true_hidden_size": 32,
    "intra_bottleneck_size": 32,
}


@settings(max_examples=8)
@given(
    st.fixed_dictionaries(
        {
            "num_hidden_layers": st.integers(1, 3),
            "num_attention_heads": st.sampled_from((1, 2, 4)),
            "num_feedforward_networks": st.integers(1, 4),
            "hidden_act": st.sampled_from(("relu", "gelu")),
            "type_vocab_size": st.sampled_from((1, 2)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(MobileBertModel(MobileBertConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("MobileBERT", MobileBertModel(MobileBertConfig(**SMALL)))


@pytest.mark.parametrize("model_class", [MobileBertForMaskedLM, MobileBertForPreTraining])
def test_masked_language_models(model_class: Any, tmp_path: Path) -> None:
    model = randomise(model_class(MobileBertConfig(**SMALL)))
    save(model, tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", mask_token="[UNK]")
    checkpoint = load_checkpoint(str(tmp_path))
    ids = random_ids(2, 9)
    module, lengths = eager(checkpoint), torch.tensor([9, 9])
    with torch.no_grad():
        found = model(ids)
        expected = found.logits if model_class is MobileBertForMaskedLM else found.prediction_logits
        actual = module.logits(module.encode(ids, lengths, torch.zeros_like(ids)))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-3)


def test_classifies(tmp_path: Path) -> None:
    model = randomise(
        MobileBertForSequenceClassification(MobileBertConfig(**SMALL | {"num_labels": 3}))
    )
    checkpoint = load_checkpoint(str(save(model, tmp_path)))
    ids = random_ids(2, 9)
    with torch.no_grad():
        expected = model(ids).logits
    actual = pooled(checkpoint, ids, torch.tensor([9, 9]))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_bottleneck_attention", True),
        ("normalization_type", "layer_norm"),
        ("trigram_input", False),
        ("intra_bottleneck_size", 16),
    ],
)
def test_refuses_other_layers(field: str, value: object, tmp_path: Path) -> None:
    save(MobileBertModel(MobileBertConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", **{field: value})
    with pytest.raises((SourceError, UnsupportedError), match=field):
        load_checkpoint(str(tmp_path))
