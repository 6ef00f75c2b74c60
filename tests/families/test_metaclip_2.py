"""MetaCLIP 2 against transformers: its encoders of images and of texts, alone and as towers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MetaClip2Config,
    MetaClip2ForImageClassification,
    MetaClip2Model,
    MetaClip2TextConfig,
    MetaClip2TextModel,
    MetaClip2TextModelWithProjection,
    MetaClip2VisionConfig,
    MetaClip2VisionModel,
    MetaClip2VisionModelWithProjection,
)

from export.errors import SourceError
from tests.families import harness
from tests.families.harness import imported
from tests.families.images import SMALL, check_graphs, logits
from tests.families.test_clip import (
    ACTIVATIONS,
    TEXT,
    end_texts,
    hidden,
    image_embeds,
    last,
    pooled,
    processor_of,
    projected,
    unit,
)


def whole(**changes: Any) -> Any:
    """A configuration of both towers."""
    return MetaClip2Config(vision_config=SMALL, text_config=TEXT, projection_dim=32, **changes)


@pytest.mark.parametrize(
    ("model", "expected", "tower"),
    [
        (lambda: MetaClip2VisionModel(MetaClip2VisionConfig(**SMALL)), pooled, None),
        (
            lambda: MetaClip2VisionModelWithProjection(
                MetaClip2VisionConfig(**SMALL, projection_dim=20)
            ),
            projected,
            None,
        ),
        (lambda: MetaClip2ForImageClassification(whole(num_labels=5)), logits, None),
        (lambda: MetaClip2Model(whole()), image_embeds, "image"),
    ],
)
def test_graphs_of_images_match_transformers(model: Any, expected: Any, tower: str | None) -> None:
    check_graphs("MetaCLIP 2 (images)", model(), processor_of(), expected, tower)


@settings(max_examples=6, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {"layer_norm_eps": st.sampled_from((1e-12, 1e-2)), **ACTIVATIONS}
    ),
    class_=st.sampled_from([MetaClip2TextModel, MetaClip2TextModelWithProjection]),
)
def test_eager_texts_match_transformers(changes: dict[str, Any], class_: Any) -> None:
    model = class_(MetaClip2TextConfig(**TEXT | changes))
    harness.check_eager(model, expected=hidden, prepare=end_texts)


def test_graphs_of_texts_match_transformers() -> None:
    harness.check_graphs(
        "MetaCLIP 2 (texts)",
        MetaClip2Model(whole()),
        expected=lambda model, ids: unit(
            model.text_projection(last(hidden(model.text_model, ids)))
        ),
        prepare=end_texts,
        tower="text",
    )


def test_the_end_of_texts_may_have_the_id_2() -> None:
    """As published. In CLIP, that id stands for the last token of the vocabulary."""
    model = MetaClip2TextModel(MetaClip2TextConfig(**TEXT | {"eos_token_id": 2}))
    with (
        pytest.raises(SourceError, match="does not end texts with the token 2"),
        imported(model, prepare=end_texts),
    ):
        pass
