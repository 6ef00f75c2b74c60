"""ESM Cambrian against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    EsmcConfig,
    EsmcForMaskedLM,
    EsmcForSequenceClassification,
    EsmcForTokenClassification,
    EsmcModel,
)

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.bundle import Task
from model.transformer import from_weights
from tests.export.importers.support import edit_json, random_ids, randomise, save
from tests.families.encoders import SMALL
from tests.families.harness import check_eager, check_graphs

AXES = {
    "num_hidden_layers": st.integers(1, 3),
    "num_attention_heads": st.sampled_from((2, 8)),
    "intermediate_size": st.sampled_from((48, 96)),
    "hidden_act": st.sampled_from(("silu", "gelu")),
    "attention_bias": st.booleans(),
    "mlp_bias": st.booleans(),
}


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(EsmcModel(EsmcConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("ESM C", EsmcModel(EsmcConfig(**SMALL)))


@torch.no_grad()
@pytest.mark.parametrize(
    ("model_class", "task"),
    [
        (EsmcForMaskedLM, Task.FILL_MASK),
        (EsmcForSequenceClassification, Task.CLASSIFY),
        (EsmcForTokenClassification, Task.TAG),
    ],
)
def test_heads_match_transformers(tmp_path: Path, model_class: Any, task: Task) -> None:
    model = randomise(model_class(EsmcConfig(**SMALL | {"num_labels": 3})))
    save(model, tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", mask_token="w28")
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.tasks == (task,)
    ids, lengths = random_ids(2, 9), torch.tensor([9, 4], dtype=torch.int32)
    ours = from_weights(checkpoint.config, checkpoint.weights)
    hidden = ours.encode(ids, lengths)
    outputs = ours.logits(hidden) if task == Task.FILL_MASK else ours.pool(hidden, lengths)
    for row, length, output in zip(ids, lengths, outputs, strict=True):
        expected = model(row[None, :length]).logits[0]
        actual = output[:length] if expected.ndim == 2 else output
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_grouped_queries_are_refused(tmp_path: Path) -> None:
    save(EsmcModel(EsmcConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", num_key_value_heads=2)
    with pytest.raises(UnsupportedError, match="num_key_value_heads 2"):
        load_checkpoint(str(tmp_path))
