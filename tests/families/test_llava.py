"""LLaVA against transformers, with its towers and language models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlavaConfig, LlavaForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from export.errors import SourceError, UnsupportedError
from export.importers.llava import LLAVA, TOWER_DEFAULTS
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import SMALL
from tests.families.vision import CLIP, IMAGE_TOKEN, SIDE, SIGLIP, check_eager, check_graphs

TEXT: dict[str, Any] = {**SMALL, "model_type": "llama", "max_position_embeddings": 160}


def model(
    text: dict[str, Any] | None = None, tower: dict[str, Any] | None = None, **changes: Any
) -> Any:
    config = LlavaConfig(
        text_config=TEXT | (text or {}),
        vision_config=CLIP | (tower or {}),
        image_token_index=IMAGE_TOKEN,
        **changes,
    )
    return LlavaForConditionalGeneration(config)


def processor() -> Any:
    size = {"height": SIDE, "width": SIDE}
    return CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)


@settings(max_examples=8, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "vision_feature_layer": st.sampled_from((-2, -3, 1, 2)),
            "vision_feature_select_strategy": st.sampled_from(("default", "full")),
            "projector_hidden_act": st.sampled_from(("gelu", "relu")),
            "multimodal_projector_bias": st.booleans(),
        }
    ),
    st.sampled_from(("llama", "mistral", "qwen2")),
    st.sampled_from(("quick_gelu", "gelu")),
)
def test_eager_matches_transformers(changes: dict[str, Any], text: str, act: str) -> None:
    check_eager(model({"model_type": text}, {"hidden_act": act}, **changes), processor())


@pytest.mark.parametrize("layer", [-1, -2])
def test_a_tower_of_siglip_matches_transformers(layer: int) -> None:
    tower = {**SIGLIP, "vision_use_head": False}
    changes = {"vision_feature_layer": layer, "vision_feature_select_strategy": "full"}
    size = {"height": SIDE, "width": SIDE}
    check_eager(model(None, tower, **changes), SiglipImageProcessorPil(size=size))


def test_graphs_match_transformers() -> None:
    check_graphs("LLaVA 1.5", model(), processor())


def test_defaults_are_those_of_transformers() -> None:
    config: Any = LlavaConfig()
    text, tower = config.text_config.to_dict(), config.vision_config.to_dict()
    assert {name: text[name] for name in LLAVA.defaults} == LLAVA.defaults
    assert {name: tower[name] for name in TOWER_DEFAULTS} == TOWER_DEFAULTS


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"vision_feature_layer": [-2, -3]}, UnsupportedError, "supported: one"),
        ({"vision_feature_layer": -9}, SourceError, "vision_feature_layer is -9, of 3 layers"),
        ({"vision_feature_select_strategy": "cls"}, UnsupportedError, "'cls' is not supported"),
        ({"image_token_index": 500}, SourceError, "has no image token 500"),
        ({"vision_config": {**CLIP, "model_type": "vit"}}, UnsupportedError, "'vit' is not"),
    ],
)
def test_other_configurations_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    save(model(), tmp_path)
    processor().save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))


def test_a_tower_without_a_class_token_has_none_to_drop(tmp_path: Path) -> None:
    save(model(None, {**SIGLIP, "vision_use_head": False}), tmp_path)
    SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="'default' is for towers with a class token"):
        load_checkpoint(str(tmp_path))


# Names of weights before transformers 4.52, and those that its models have in memory.
OLDER = {"vision_tower.": "vision_tower.vision_model."}
LATER = {
    "language_model.lm_head.": "lm_head.",
    "language_model.model.": "model.language_model.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}


@pytest.mark.parametrize("names", [OLDER, LATER])
def test_names_of_all_versions_are_read(names: dict[str, str], tmp_path: Path) -> None:
    save(model(), tmp_path)
    processor().save_pretrained(tmp_path)
    before = load_checkpoint(str(tmp_path)).weights
    path = tmp_path / "model.safetensors"
    renamed = {}
    for name, weight in load_file(path).items():
        start = next((start for start in names if name.startswith(start)), "")
        renamed[names.get(start, "") + name.removeprefix(start)] = weight
    renamed["vision_tower.vision_model.embeddings.position_ids"] = torch.zeros(1, 10)
    save_file(renamed, path)
    after = load_checkpoint(str(tmp_path)).weights
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
