"""Language models of Gemma 3 and Mistral 3 for images and texts, against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
)

from export.errors import UnsupportedError, WeightsError
from export.importers.language_models import GEMMA3
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, save
from tests.families.gated import SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs
from tests.families.test_mistral import MINISTRAL3, YARN

IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def gemma3(**changes: Any) -> Any:
    text = {**SMALL, "head_dim": 16, **changes}
    images = {**IMAGES, "model_type": "siglip_vision_model"}
    config = Gemma3Config(text_config=text, vision_config=images, mm_tokens_per_image=4)
    return Gemma3ForConditionalGeneration(config)


def mistral3(*, tied: bool = False, **changes: Any) -> Any:
    text = {**MINISTRAL3, "model_type": "ministral3", "rope_parameters": YARN, **changes}
    text["tie_word_embeddings"] = tied
    images = {**IMAGES, "model_type": "pixtral", "head_dim": 16}
    config = Mistral3Config(text_config=text, vision_config=images, tie_word_embeddings=tied)
    return Mistral3ForConditionalGeneration(config)


@settings(max_examples=8)
@given(st.fixed_dictionaries({"sliding_window": WINDOWS, "layer_types": layer_types()}))
def test_gemma3_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(gemma3(**changes))


@settings(max_examples=8)
@given(tied=st.booleans(), model_type=st.sampled_from(("mistral", "ministral3")))
def test_mistral3_eager_matches_transformers(tied: bool, model_type: str) -> None:
    changes = {} if model_type == "ministral3" else {"rope_parameters": None}
    check_eager(mistral3(tied=tied, model_type=model_type, **changes))


def test_gemma3_graphs_match_transformers() -> None:
    check_graphs("Gemma 3 (of images and texts)", gemma3(sliding_window=5))


def test_mistral3_graphs_match_transformers() -> None:
    check_graphs("Ministral 3 (of images and texts)", mistral3())


def test_defaults_are_those_of_transformers() -> None:
    config = Gemma3TextConfig().to_dict()
    assert {name: config[name] for name in GEMMA3.defaults} == GEMMA3.defaults


def test_another_language_model_is_refused(tmp_path: Path) -> None:
    save(mistral3(), tmp_path)
    edit_json(tmp_path / "config.json", text_config={"model_type": "qwen2"})
    with pytest.raises(UnsupportedError, match="'qwen2' is not supported"):
        load_checkpoint(str(tmp_path))


def test_another_class_is_refused(tmp_path: Path) -> None:
    save(gemma3(), tmp_path)
    edit_json(tmp_path / "config.json", architectures=["Gemma3ForSequenceClassification"])
    with pytest.raises(UnsupportedError, match="'Gemma3ForSequenceClassification' is not"):
        load_checkpoint(str(tmp_path))


def test_unknown_weights_are_refused(tmp_path: Path) -> None:
    save(gemma3(), tmp_path)
    edit_weights(tmp_path, add=("audio_tower.weight",))
    with pytest.raises(WeightsError, match=r"unexpected: audio_tower\.weight"):
        load_checkpoint(str(tmp_path))
