"""Configurations that were edited by hand, against transformers' reading of the same folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from export.parity import TOLERANCE
from export.sources import load_checkpoint
from model.transformer import from_weights
from tests.export.importers.support import edit_json, randomise, save
from tests.families.gated import SMALL
from tests.families.harness import eager_outputs, reference_outputs_of, rows_of

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
TYPES = ["sliding_attention", "full_attention"]
MODELS: dict[str, Any] = {
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, layer_types=TYPES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
}


@torch.no_grad()
def check_edited(family: str, folder: Path, changes: dict[str, Any]) -> None:
    """Compares the eager module with transformers; ``changes`` are those of config.json."""
    original = randomise(MODELS[family]())
    save(original, folder)
    edit_json(folder / "config.json", **changes)
    options: Any = {"attn_implementation": "eager"}
    model = type(original).from_pretrained(folder, **options).eval()
    checkpoint = load_checkpoint(str(folder))
    module = from_weights(checkpoint.config, checkpoint.weights).double()
    rows = rows_of(checkpoint)
    for row, actual in zip(rows, eager_outputs(module, checkpoint, rows), strict=True):
        expected = reference_outputs_of(model, checkpoint, row, None)
        assert float((actual - expected).abs().max()) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_scaling": LINEAR | {"rope_theta": 500.0}}),
        ("llama", {"rope_scaling": YARN}),
        ("llama", {"rope_scaling": YARN | {"beta_fast": 0, "beta_slow": 0}}),
        ("gemma3", {"rope_scaling": LINEAR}),
    ],
)
def test_added_rope_scaling_is_used(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    check_edited(family, tmp_path, changes)
