"""Idefics 3 and SmolVLM against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from export.errors import SourceError, UnsupportedError
from export.importers import idefics3
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import SMALL
from tests.families.vision import IMAGE_TOKEN, check_eager, check_graphs, nested

TEXT: dict[str, Any] = {**SMALL, "model_type": "llama", "max_position_embeddings": 2048}
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}


def smolvlm(tower: dict[str, Any] | None = None, **changes: Any) -> Any:
    config = SmolVLMConfig(
        text_config=dict(TEXT),
        vision_config=TOWER | (tower or {}),
        image_token_id=IMAGE_TOKEN,
        **changes,
    )
    return SmolVLMForConditionalGeneration(config)


def model_of_idefics3(**changes: Any) -> Any:
    config = Idefics3Config(
        text_config=dict(TEXT), vision_config=dict(TOWER), image_token_id=IMAGE_TOKEN, **changes
    )
    return Idefics3ForConditionalGeneration(config)


def processor(
    side: int = 16, edge: int = 32, kind: Any = SmolVLMImageProcessorPil, **more: Any
) -> Any:
    sizes = {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": side}}
    return kind(**sizes, **more)


@settings(max_examples=10, deadline=None)
@given(
    scale_factor=st.sampled_from((1, 2, 4)),
    splits=st.booleans(),
    edge=st.sampled_from((16, 23, 32, 40)),
)
def test_eager_matches_transformers(scale_factor: int, splits: bool, edge: int) -> None:
    made = processor(edge=edge, do_image_splitting=splits)
    check_eager(smolvlm(scale_factor=scale_factor), made, nested)


@pytest.mark.parametrize("side", [28, 36, 76])
def test_positions_are_those_of_transformers(side: int) -> None:
    """Their rounding moves some patches; a smaller image has fewer than in training."""
    tower = {"image_size": 76, "patch_size": 4}
    check_eager(smolvlm(tower, scale_factor=1), processor(side, side), nested)


def test_idefics3_matches_transformers() -> None:
    check_eager(model_of_idefics3(), processor(kind=Idefics3ImageProcessorPil), nested)


def test_graphs_match_transformers() -> None:
    check_graphs("SmolVLM", smolvlm(), processor(), nested)
    made = processor(kind=Idefics3ImageProcessorPil)
    check_graphs("Idefics 3", model_of_idefics3(), made, nested)


def test_defaults_are_those_of_transformers() -> None:
    configs: tuple[Any, ...] = (SmolVLMConfig(), Idefics3Config())
    for config in configs:
        text, tower = config.text_config.to_dict(), config.vision_config.to_dict()
        assert {name: text[name] for name in idefics3.TEXT_DEFAULTS} == idefics3.TEXT_DEFAULTS
        assert {name: tower[name] for name in idefics3.TOWER_DEFAULTS} == idefics3.TOWER_DEFAULTS
        assert config.image_token_id == idefics3.IMAGE_TOKEN
        assert config.scale_factor == idefics3.SCALE_FACTOR


@pytest.mark.parametrize(
    ("file", "changes", "error", "message"),
    [
        ("config.json", {"scale_factor": 3}, SourceError, "scale_factor 3 does not divide"),
        ("config.json", {"image_token_id": 500}, SourceError, "has no image token 500"),
        (
            "preprocessor_config.json",
            {"max_image_size": {"height": 16, "width": 16}},
            UnsupportedError,
            "height 16 is not supported",
        ),
        (
            "preprocessor_config.json",
            {"size": {"longest_edge": 5000}},
            SourceError,
            "longest_edge is 5000",
        ),
        (
            "preprocessor_config.json",
            {"image_processor_type": "ViTImageProcessor"},
            UnsupportedError,
            "'ViT' is not supported",
        ),
        (
            "preprocessor_config.json",
            {"size": {"longest_edge": 4096}, "max_image_size": {"longest_edge": 4}},
            UnsupportedError,
            "vectors of an image",
        ),
    ],
)
def test_other_configurations_are_refused(
    file: str,
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    save(smolvlm({"image_size": 4}, scale_factor=1), tmp_path)
    processor(4).save_pretrained(tmp_path)
    edit_json(tmp_path / file, **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))


def test_templates_of_older_processors_are_read(tmp_path: Path) -> None:
    save(smolvlm(), tmp_path)
    processor().save_pretrained(tmp_path)
    template = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}"
    edit_json(tmp_path / "tokenizer_config.json", chat_template="{{ messages[0].content }}")
    edit_json(tmp_path / "chat_template.json", chat_template=template)
    assert load_checkpoint(str(tmp_path)).chat_template == template
