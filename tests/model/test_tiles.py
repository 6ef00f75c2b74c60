"""Tiles of pictures are those of the image processors of transformers, pixel by pixel."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from model.image_config import ImagePrompt, ImageSpec, Resampling, Tiling
from model.images import open_image
from model.tiles import WHOLE, Grid, grid_of, text_of, to_tiles
from tests.pictures import picture

SIDE = 16


def spec_of(edge: int, *, splits: bool = True) -> ImageSpec:
    return ImageSpec(
        height=SIDE,
        width=SIDE,
        num_channels=3,
        resize=(SIDE, SIDE),
        resampling=Resampling.LANCZOS,
        num_tokens=4,
        tiling=Tiling(longest_edge=edge, splits=splits),
    )


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 150),
    height=st.integers(1, 150),
    edge=st.sampled_from((8, 16, 17, 40, 64, 100)),
    splits=st.booleans(),
)
def test_tiles_are_those_of_transformers(width: int, height: int, edge: int, splits: bool) -> None:
    data, spec = picture(1, size=(width, height)), spec_of(edge, splits=splits)
    processor: Any = Idefics3ImageProcessorPil(
        size={"longest_edge": edge},
        max_image_size={"longest_edge": SIDE},
        do_image_splitting=splits,
        do_rescale=False,
        do_normalize=False,
    )
    expected = processor([[Image.open(io.BytesIO(data))]], return_row_col_info=True)
    tiles = to_tiles(open_image(data), spec)
    assert tiles.grid == (expected["rows"][0][0], expected["cols"][0][0])
    assert grid_of(width, height, spec) == tiles.grid
    assert tiles.grid.num_images == len(tiles.images)
    assert tiles.grid.num_images * spec.num_tokens <= spec.max_tokens
    values = np.asarray(expected["pixel_values"])[0].transpose(0, 2, 3, 1)
    assert np.array_equal(np.stack(tiles.images), values)


def test_a_turned_picture_has_as_many_tiles() -> None:
    """Memory and tokens are counted before a picture is turned upright."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.open(io.BytesIO(picture(size=(90, 40)))).save(file, "JPEG", exif=exif)
    opened, spec = open_image(file.getvalue()), spec_of(64)
    counted = grid_of(*opened.size, spec)
    tiles = to_tiles(opened, spec)
    assert counted == Grid(2, 4)
    assert tiles.grid == Grid(4, 2)


PROMPT = ImagePrompt(
    placeholder="<image>",
    token=1,
    before="<f><g>",
    after="<f>",
    before_tile="<f><{row},{column}>",
    after_row="\n",
    after_tiles="|",
)


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        (WHOLE, "<f><g>ii<f>"),
        (Grid(1, 2), "<f><1,1>ii<f><1,2>ii\n|<f><g>ii<f>"),
        (Grid(2, 1), "<f><1,1>ii\n<f><2,1>ii\n|<f><g>ii<f>"),
    ],
)
def test_text_of_a_picture(grid: Grid, text: str) -> None:
    assert text_of(grid, PROMPT, "i", 2) == text
