"""Configurations that were edited by hand, against transformers' reading of the same folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoConfig,
    DistilBertConfig,
    DistilBertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    XGLMConfig,
    XGLMForCausalLM,
)

from export.parity_reference import TOLERANCE
from export.sources import load_checkpoint
from model.mixers import required
from model.transformer import from_weights
from tests.export.importers.support import edit_json, randomise, save
from tests.families.encoders import SMALL as SMALL_BERT
from tests.families.gated import SMALL
from tests.families.harness import eager_outputs, reference_outputs_of, rows_of
from tests.families.test_bart import SMALL as SMALL_BART
from tests.families.test_distilbert import SMALL as SMALL_DISTILBERT
from tests.families.test_t5 import SMALL as SMALL_T5
from tests.families.test_xglm import XGLM as SMALL_XGLM

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
TYPES = ["sliding_attention", "full_attention"]
MODELS: dict[str, Any] = {
    "albert": lambda: AlbertModel(AlbertConfig(**SMALL_BERT)),
    "distilbert": lambda: DistilBertModel(DistilBertConfig(**SMALL_DISTILBERT)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, layer_types=TYPES)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL)),
    "m2m100": lambda: M2M100ForConditionalGeneration(M2M100Config(**SMALL_BART)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**SMALL_T5)),
    "gated t5": lambda: T5ForConditionalGeneration(
        T5Config(**SMALL_T5, feed_forward_proj="gated-gelu")
    ),
    "mt5": lambda: MT5ForConditionalGeneration(MT5Config(**SMALL_T5)),
    "xglm": lambda: XGLMForCausalLM(XGLMConfig(**SMALL_XGLM)),
}


@torch.no_grad()
def check_edited(family: str, folder: Path, changes: dict[str, Any]) -> None:
    """Compares the eager module with transformers.

    Args:
        changes: of config.json; None removes a field.
    """
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


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("albert", "hidden_act"),
        ("gemma2", "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping"),
        ("m2m100", "activation_function"),
        ("m2m100", "scale_embedding"),
    ],
)
def test_missing_field_has_the_familys_default(tmp_path: Path, family: str, field: str) -> None:
    check_edited(family, tmp_path, {field: None})


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("t5", {"dense_act_fn": "silu"}),
        ("t5", {"feed_forward_proj": "gated-silu"}),
        ("gated t5", {"dense_act_fn": "gelu"}),
        ("gated t5", {"feed_forward_proj": "relu"}),
        ("gated t5", {"dense_act_fn": None, "is_gated_act": None}),
        ("mt5", {"feed_forward_proj": None, "dense_act_fn": None, "is_gated_act": None}),
    ],
)
def test_activation_of_t5(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    check_edited(family, tmp_path, changes)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("distilbert", {"layer_norm_eps": 0.3}),
        ("xglm", {"hidden_act": "relu"}),
        ("xglm", {"hidden_act": "gelu", "activation_function": "relu"}),
    ],
)
def test_fields_that_transformers_does_not_read_change_nothing(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    check_edited(family, tmp_path, changes)


def test_missing_window_has_mistrals_default(tmp_path: Path) -> None:
    # Larger than the test's texts.
    save(MistralForCausalLM(MistralConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", sliding_window=None)
    assert AutoConfig.from_pretrained(tmp_path).sliding_window == window_of(tmp_path) == 4096
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("{", '{"sliding_window": null, ', 1))
    assert AutoConfig.from_pretrained(tmp_path).sliding_window is window_of(tmp_path) is None


def window_of(folder: Path) -> int | None:
    """The window of a decoder's first layer."""
    decoder = load_checkpoint(str(folder)).config.decoder
    assert decoder is not None
    return required(decoder.layers[0].attention).window
