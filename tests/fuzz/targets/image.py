"""Pictures: headers, EXIF data, pixels and tiles."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import structs
from PIL import Image

from model.image_config import ImageSpec, Resampling, Tiling
from model.images import ImageError, decode_image, open_image
from model.tiles import grid_of, to_tiles

SIZE = 4096
SPEC = ImageSpec(
    height=8, width=8, num_channels=3, resize=(8, 8), resampling=Resampling.BOX, num_tokens=1
)


TILES = structs.replace(SPEC, tiling=Tiling(longest_edge=30))


def run(data: bytes) -> None:
    """``data``: a file."""
    try:
        pixels = decode_image(data, SPEC)
        opened = open_image(data)
        grid, tiles = to_tiles(opened, TILES)
    except ImageError as error:
        str(error).encode()
        return
    assert pixels.shape == (8, 8, 3)
    assert {tile.shape for tile in tiles} == {(8, 8, 3)}
    # Their memory is reserved by the size in the header.
    assert len(tiles) == grid.num_images == grid_of(*opened.size, TILES).num_images


def seeds() -> Iterator[bytes]:
    picture = Image.fromarray(np.arange(9 * 12 * 3, dtype=np.uint8).reshape(9, 12, 3))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "upright"  # orientation, description
    frames = {"save_all": True, "append_images": [picture.rotate(180)]}
    formats: tuple[tuple[str, dict[str, Any]], ...] = (
        ("PNG", {"exif": exif}),
        ("JPEG", {"exif": exif}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {"exif": exif}),
        ("WEBP", {"lossless": True, **frames}),
        ("GIF", frames),
        ("PNG", frames),
        ("BMP", {}),
    )
    for name, options in formats:
        yield _encoded(picture, name, options)
    for mode in ("1", "LA", "RGBA", "P"):
        yield _encoded(picture.convert(mode), "PNG", {})
    yield _encoded(picture.convert("CMYK"), "JPEG", {})
    yield _encoded(Image.fromarray(np.arange(99, dtype=np.uint16).reshape(9, 11)), "PNG", {})


def _encoded(picture: Image.Image, name: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    picture.save(file, name, **options)
    return file.getvalue()
