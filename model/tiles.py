"""Cuts pictures into tiles, as the image processors of Idefics 3 and SmolVLM do.

The source is ``transformers.models.idefics3.image_processing_idefics3``. Imports no torch.
"""

import math
from typing import NamedTuple

from PIL import Image

from model.image_config import ImagePrompt, ImageSpec
from model.images import Pixels, fitted, open_pixels, resized


class Grid(NamedTuple):
    """Rows and columns of tiles; 0 if the picture is one image."""

    rows: int
    columns: int

    @property
    def num_images(self) -> int:
        """The number of tiles, and the whole picture."""
        return self.rows * self.columns + 1


WHOLE = Grid(0, 0)


class _Size(NamedTuple):
    width: int
    height: int


def grid_of(width: int, height: int, spec: ImageSpec) -> Grid:
    """The tiles of a picture of ``width`` by ``height`` pixels, turned upright."""
    if spec.tiling is None or not spec.tiling.splits:
        return WHOLE
    size = _longest(_Size(width, height), spec.tiling.longest_edge)
    return _grid(_multiple(size, spec.height), spec.height)


class Tiles(NamedTuple):
    """A picture's tiles row by row, then the whole picture.

    ``images``: each ``[height, width, channels]``, 0 to 255.
    """

    grid: Grid
    images: list[Pixels]


def to_tiles(image: Image.Image, spec: ImageSpec) -> Tiles:
    """Decodes an opened picture, and cuts it as ``spec`` says.

    Raises:
        ImageError: see :func:`model.images.to_pixels`.
    """
    picture = open_pixels(image, spec)
    if spec.tiling is None:
        return Tiles(WHOLE, [fitted(picture, spec)])
    picture = resized(picture, _longest(_Size(*picture.size), spec.tiling.longest_edge), spec)
    side, parts, grid = spec.height, [], WHOLE
    if spec.tiling.splits:
        picture = resized(picture, _multiple(_Size(*picture.size), side), spec)
        grid = _grid(_Size(*picture.size), side)
        parts = [
            picture.crop((side * column, side * row, side * (column + 1), side * (row + 1)))
            for row in range(grid.rows)
            for column in range(grid.columns)
        ]
    return Tiles(grid, [fitted(part, spec) for part in (*parts, picture)])


def text_of(grid: Grid, prompt: ImagePrompt, token: str, num_tokens: int) -> str:
    """What a prompt has for a picture.

    Args:
        grid: of the picture.
        prompt: how the prompt has images.
        token: the text of ``prompt.token``.
        num_tokens: of each image.
    """
    tokens, parts = token * num_tokens, []
    for row in range(1, grid.rows + 1):
        for column in range(1, grid.columns + 1):
            before = prompt.before_tile.replace("{row}", str(row))
            parts += [before.replace("{column}", str(column)), tokens]
        parts.append(prompt.after_row)
    if grid.rows:
        parts.append(prompt.after_tiles)
    return "".join([*parts, prompt.before, tokens, prompt.after])


def _grid(size: _Size, side: int) -> Grid:
    """The tiles of a picture whose sides are multiples of ``side``."""
    rows, columns = size.height // side, size.width // side
    return WHOLE if rows == columns == 1 else Grid(rows, columns)


def _longest(size: _Size, edge: int) -> _Size:
    """The size with a longer side of ``edge`` pixels; the other one is even."""
    aspect_ratio = size.width / size.height
    if size.width >= size.height:
        return _Size(edge, max(_even(int(edge / aspect_ratio)), 1))
    return _Size(max(_even(int(edge * aspect_ratio)), 1), edge)


def _even(number: int) -> int:
    return number + number % 2


def _multiple(size: _Size, side: int) -> _Size:
    """The size whose sides are the next multiples of ``side``, the longer one's first."""
    aspect_ratio = size.width / size.height
    if size.width >= size.height:
        width = _ceil(size.width, side)
        return _Size(width, _ceil(int(width / aspect_ratio), side))
    height = _ceil(size.height, side)
    return _Size(_ceil(int(height * aspect_ratio), side), height)


def _ceil(number: int, side: int) -> int:
    return math.ceil(number / side) * side
