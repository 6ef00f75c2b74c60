"""SigLIP's encoder of images against transformers, alone and as a tower."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    SiglipConfig,
    SiglipForImageClassification,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from export.errors import UnsupportedError
from tests.export.importers.support import WORDS
from tests.families.images import AXES, SMALL, case, check_eager, check_graphs, logits
from tests.families.test_clip import image_embeds, pooled


def processor_of(side: int = 24) -> Any:
    return SiglipImageProcessorPil(size={"height": side, "width": side})


def whole(**changes: Any) -> Any:
    """A configuration of both towers."""
    text = {**SMALL, "vocab_size": len(WORDS)}
    del text["image_size"], text["patch_size"]
    return SiglipConfig(vision_config=SMALL, text_config=text, **changes)


@settings(max_examples=8, deadline=None)
@given(
    st.fixed_dictionaries({name: value for name, value in AXES.items() if name != "num_channels"})
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(SiglipVisionModel(SiglipVisionConfig(**SMALL | changes)), processor_of(), pooled)


@pytest.mark.parametrize(
    ("model", "expected", "tower"),
    [
        (lambda: SiglipVisionModel(SiglipVisionConfig(**SMALL)), pooled, None),
        (lambda: SiglipForImageClassification(whole(num_labels=5)), logits, None),
        (lambda: SiglipModel(whole()), image_embeds, "image"),
    ],
)
def test_graphs_match_transformers(model: Any, expected: Any, tower: str | None) -> None:
    check_graphs("SigLIP (images)", model(), processor_of(), expected, tower)


def test_the_tower_of_texts_is_refused() -> None:
    with (
        pytest.raises(UnsupportedError, match="--tower 'text' is not supported; supported: image"),
        case(SiglipModel(whole()), processor_of(), image_embeds, "text"),
    ):
        pass


def test_an_encoder_without_pooling_is_refused() -> None:
    model = SiglipVisionModel(SiglipVisionConfig(**SMALL, vision_use_head=False))
    with (
        pytest.raises(UnsupportedError, match="vision_use_head False is not supported"),
        case(model, processor_of(), pooled),
    ):
        pass
