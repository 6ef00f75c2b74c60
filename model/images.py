"""Pictures as pixels: decoding with Pillow and resizing as a model expects. Imports no torch."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from model.image_config import ImageSpec

Pixels = npt.NDArray[np.uint8]

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MODES = {1: "L", 3: "RGB"}  # of Pillow, by the number of channels
MAX_SIDE = 1 << 14  # of a picture after it was resized


class ImageError(Exception):
    """A picture that cannot be read. ``str(error)`` completes "the picture …"."""


def open_image(data: bytes) -> Image.Image:
    """Reads the header of a picture: its format and size, not its pixels.

    Raises:
        ImageError: it is in none of :data:`FORMATS`, or damaged.
    """
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ImageError(f"is not one of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise ImageError("has too many pixels") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageError("is damaged") from error


def to_pixels(image: Image.Image, spec: ImageSpec) -> Pixels:
    """Decodes an opened picture: ``[height, width, channels]``, 0 to 255.

    As ``transformers`` does: a camera's orientation is applied, transparent pixels keep their
    colour, and an animation is its first frame.

    Raises:
        ImageError: it is damaged, or too narrow to be resized.
    """
    try:
        converted = _8_bits(ImageOps.exif_transpose(image)).convert(MODES[spec.num_channels])
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise ImageError("is damaged") from error
    width, height = _resized(converted.size, spec)
    if max(width, height) > MAX_SIDE:
        raise ImageError(f"is too narrow: it would become {width} by {height} pixels")
    if (width, height) != converted.size:
        converted = converted.resize((width, height), Image.Resampling[spec.resampling.upper()])
    left, top = (width - spec.width) // 2, (height - spec.height) // 2
    if (width, height) != (spec.width, spec.height):
        # What lies outside is black.
        converted = converted.crop((left, top, left + spec.width, top + spec.height))
    return np.asarray(converted).reshape(spec.height, spec.width, spec.num_channels)


def decode_image(data: bytes, spec: ImageSpec) -> Pixels:
    """The picture ``data`` as ``[height, width, channels]``, 0 to 255.

    Raises:
        ImageError: as :func:`open_image` and :func:`to_pixels`.
    """
    return to_pixels(open_image(data), spec)


def encode_png(pixels: Pixels) -> bytes:
    """``pixels [height, width, channels]`` as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _8_bits(image: Image.Image) -> Image.Image:
    """``image`` with 8 bits per channel: Pillow would cut values of 16 bits off at 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))


def _resized(size: tuple[int, int], spec: ImageSpec) -> tuple[int, int]:
    """Width and height after resizing, before the cut."""
    height, width = spec.resize
    if not spec.keeps_aspect_ratio:
        return width, height
    shorter = min(size)
    return height * size[0] // shorter, height * size[1] // shorter
