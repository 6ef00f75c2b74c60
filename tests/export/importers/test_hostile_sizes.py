"""Sizes in ``config.json`` for which an export would compute without end are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from export.errors import SourceError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.export.importers.test_llama import llama

HUGE = 2**31 - 1
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "d_model": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_sparse_step": 1,
    "vocab_size": 10,
}


@pytest.mark.parametrize(
    ("config", "architecture", "field"),
    [
        (transformers.MarianConfig, "MarianMTModel", "max_position_embeddings"),
        (transformers.MarianConfig, "MarianMTModel", "d_model"),
        (transformers.M2M100Config, "M2M100ForConditionalGeneration", "max_position_embeddings"),
        (
            transformers.LEDConfig,
            "LEDForConditionalGeneration",
            "max_encoder_position_embeddings",
        ),
        (transformers.RoFormerConfig, "RoFormerModel", "max_position_embeddings"),
        (transformers.RoFormerConfig, "RoFormerModel", "hidden_size"),
        (transformers.XGLMConfig, "XGLMForCausalLM", "max_position_embeddings"),
        (transformers.BertConfig, "BertForSequenceClassification", "num_labels"),
        (transformers.MixtralConfig, "MixtralForCausalLM", "num_local_experts"),
        (transformers.GraniteMoeConfig, "GraniteMoeForCausalLM", "num_local_experts"),
        (transformers.OlmoeConfig, "OlmoeForCausalLM", "num_experts"),
        (transformers.Qwen3MoeConfig, "Qwen3MoeForCausalLM", "num_experts"),
        (transformers.NllbMoeConfig, "NllbMoeForConditionalGeneration", "num_experts"),
        (
            transformers.SwitchTransformersConfig,
            "SwitchTransformersForConditionalGeneration",
            "num_experts",
        ),
    ],
)
def test_huge_sizes_are_refused(tmp_path: Path, config: Any, architecture: str, field: str) -> None:
    config(**SIZES, architectures=[architecture]).save_pretrained(tmp_path)
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    value = HUGE - 1 if field in ("d_model", "hidden_size") else HUGE  # divisible by the heads
    edit_json(tmp_path / "config.json", **{field: value}, id2label=None)
    with pytest.raises(SourceError, match=f"{field} is {value}|sinusoids has more than"):
        load_checkpoint(str(tmp_path))


def test_huge_rotary_positions_are_refused(tmp_path: Path) -> None:
    save(llama(), tmp_path)
    edit_json(tmp_path / "config.json", max_position_embeddings=HUGE)
    with pytest.raises(SourceError, match=f"{HUGE} positions"):
        load_checkpoint(str(tmp_path))
