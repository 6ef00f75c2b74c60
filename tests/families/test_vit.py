"""ViT and DeiT against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    DeiTModel,
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTModel,
)

from export.errors import ExportError, SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import edit_json, edit_weights
from tests.families.images import (
    AXES,
    SMALL,
    case,
    check_eager,
    check_graphs,
    class_token,
    cropping_processor,
    logits,
    square_processor,
)

CONFIGURATIONS = st.fixed_dictionaries({**AXES, "qkv_bias": st.booleans()})
LABELS = {"num_labels": 5}


@settings(max_examples=8, deadline=None)
@given(CONFIGURATIONS, st.booleans())
def test_eager_vit_matches_transformers(changes: dict[str, Any], has_pooler: bool) -> None:
    model = ViTModel(ViTConfig(**SMALL | changes), has_pooler, use_mask_token=has_pooler)
    check_eager(model, square_processor(24, changes["num_channels"]))


@settings(max_examples=8, deadline=None)
@given(CONFIGURATIONS, st.sampled_from([DeiTModel, DeiTForImageClassificationWithTeacher]))
def test_eager_deit_matches_transformers(changes: dict[str, Any], class_: Any) -> None:
    model = class_(DeiTConfig(**SMALL | LABELS | changes))
    processor = square_processor(24, changes["num_channels"])
    check_eager(model, processor, class_token if class_ is DeiTModel else logits)


def test_rectangular_images_match_transformers() -> None:
    processor = square_processor(24)
    processor.size = {"height": 12, "width": 30}
    check_eager(ViTModel(ViTConfig(**SMALL | {"image_size": [12, 30]})), processor)


@pytest.mark.parametrize(
    ("family", "model", "expected"),
    [
        ("ViT", lambda: ViTModel(ViTConfig(**SMALL)), class_token),
        ("ViT", lambda: ViTForImageClassification(ViTConfig(**SMALL | LABELS)), logits),
        ("DeiT", lambda: DeiTModel(DeiTConfig(**SMALL)), class_token),
        ("DeiT", lambda: DeiTForImageClassification(DeiTConfig(**SMALL | LABELS)), logits),
        (
            "DeiT",
            lambda: DeiTForImageClassificationWithTeacher(DeiTConfig(**SMALL | LABELS)),
            logits,
        ),
    ],
)
def test_graphs_match_transformers(family: str, model: Any, expected: Any) -> None:
    processor = square_processor(24) if family == "ViT" else cropping_processor(24)
    check_graphs(family, model(), processor, expected)


def test_one_label_of_an_image_is_no_relevance() -> None:
    model = ViTForImageClassification(ViTConfig(**SMALL | {"num_labels": 1}))
    with case(model, square_processor(24), logits) as given:
        assert given.checkpoint.tasks == (Task.CLASSIFY,)


def folder_of(model: Any, folder: Path, side: int = 24) -> Path:
    model.save_pretrained(folder)
    square_processor(side).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"patch_size": [6, 4]}, UnsupportedError, "patch_size is not square: 6 by 4"),
        ({"patch_size": 7}, SourceError, "patches of 7 pixels do not fill (24, 24)"),
        ({"image_size": 48}, SourceError, "(48, 48), but the image processor makes (24, 24)"),
        ({"num_channels": 4}, SourceError, "image_mean is not a number for each of 4 channels"),
        ({"hidden_act": "selu"}, UnsupportedError, "hidden_act 'selu' is not supported"),
        ({"num_attention_heads": 3}, SourceError, "3 heads do not divide the size 64"),
        (
            {"architectures": ["ViTForMaskedImageModeling"]},
            UnsupportedError,
            "supported: ViTModel, ViTForImageClassification",
        ),
    ],
)
def test_unusable_fields_are_named(
    tmp_path: Path, changes: dict[str, Any], error: type[ExportError], message: str
) -> None:
    folder_of(ViTModel(ViTConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error) as caught:
        load_checkpoint(str(tmp_path))
    assert message in str(caught.value)


def test_a_masked_image_model_is_refused(tmp_path: Path) -> None:
    config = ViTConfig(**SMALL, encoder_stride=6)
    folder_of(ViTForMaskedImageModeling(config), tmp_path)
    with pytest.raises(UnsupportedError, match="'ViTForMaskedImageModeling' is not supported"):
        load_checkpoint(str(tmp_path))


def test_a_missing_image_processor_is_named(tmp_path: Path) -> None:
    ViTModel(ViTConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(SourceError, match=r"no preprocessor_config\.json"):
        load_checkpoint(str(tmp_path))


def test_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    folder_of(ViTModel(ViTConfig(**SMALL)), tmp_path)
    edit_weights(tmp_path, remove=("embeddings.cls_token",), add=("extra",))
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(tmp_path))
    assert str(caught.value).splitlines()[1:] == [
        "missing: embeddings.cls_token",
        "unexpected: extra",
    ]
