"""DINOv2 against transformers."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.families.images import (
    AXES,
    SMALL,
    check_eager,
    check_graphs,
    class_token,
    cropping_processor,
    logits,
    square_processor,
)

FAMILIES = ("Dinov2", "Dinov2WithRegisters")
OUTPUTS = {"Model": class_token, "ForImageClassification": logits}
SIZES = {name: value for name, value in SMALL.items() if name != "intermediate_size"}
CONFIGURATIONS = st.fixed_dictionaries(
    {
        **{name: values for name, values in AXES.items() if name != "intermediate_size"},
        "image_size": st.sampled_from((24, 48)),
        "mlp_ratio": st.integers(1, 3),
        "qkv_bias": st.booleans(),
        "use_swiglu_ffn": st.booleans(),
        "num_labels": st.just(5),
    }
)


def make(family: str, kind: str, changes: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    return getattr(transformers, f"{family}{kind}")(config)


@settings(max_examples=12, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    kind=st.sampled_from(sorted(OUTPUTS)),
    changes=CONFIGURATIONS,
    registers=st.integers(0, 3),
    side=st.sampled_from([24, 48, 72]),
)
def test_eager_matches_transformers(
    family: str, kind: str, changes: dict[str, Any], registers: int, side: int
) -> None:
    if family == "Dinov2WithRegisters":
        changes = {**changes, "num_register_tokens": registers}
    processor = square_processor(side, changes["num_channels"])
    check_eager(make(family, kind, changes), processor, OUTPUTS[kind])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", [(12, 36), (30, 18)])
def test_positions_are_interpolated_to_rectangles(family: str, side: tuple[int, int]) -> None:
    processor = square_processor(24)
    processor.size = {"height": side[0], "width": side[1]}
    check_eager(make(family, "Model", {}), processor)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Model", {"image_size": 36}),
        ("Model", {"use_swiglu_ffn": True}),
        ("ForImageClassification", {"num_labels": 5}),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_match_transformers(family: str, kind: str, changes: dict[str, Any]) -> None:
    name = "DINOv2" if family == "Dinov2" else "DINOv2 with registers"
    check_graphs(name, make(family, kind, changes), cropping_processor(24), OUTPUTS[kind])


@pytest.mark.parametrize(
    ("kind", "changes", "error", "message"),
    [
        ("Model", {"image_size": [24, 48]}, UnsupportedError, "image_size is not square: 24 by 48"),
        ("Model", {"patch_size": 9}, SourceError, "patches of 9 pixels do not fill (24, 24)"),
        ("Backbone", {}, UnsupportedError, "'Dinov2Backbone' is not supported"),
    ],
)
def test_unusable_fields_are_named(
    tmp_path: Path, kind: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    make("Dinov2", kind, changes).save_pretrained(tmp_path)
    square_processor(24).save_pretrained(tmp_path)
    with pytest.raises(error) as caught:
        load_checkpoint(str(tmp_path))
    assert message in str(caught.value)
