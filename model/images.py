"""Decodes pictures with Pillow and resizes them as a model expects. Imports no torch."""

import io
import struct
import warnings

import numpy as np
import numpy.typing as npt
from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from model.image_config import ImageSpec

Pixels = npt.NDArray[np.uint8]

# Pillow warns once per number of pixels, and remembers each for ever. Servers have a limit.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)

# Imported here: otherwise the first WebP file makes Pillow import all its plugins, in 0.1 s.
PLUGINS = (PngImagePlugin, JpegImagePlugin, WebPImagePlugin, GifImagePlugin, BmpImagePlugin)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MODES = {1: "L", 3: "RGB"}  # Pillow's modes by number of channels
MAX_SIDE = 1 << 14  # pixels per side after resizing
# Errors of Pillow; ``MemoryError`` for a row of 2**31 bits, before it allocates anything.
DAMAGED = (OSError, ValueError, SyntaxError, EOFError, struct.error, MemoryError)
# The transposition that makes a picture upright, by its EXIF orientation.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(Exception):
    """A picture that cannot be read. ``str(error)`` completes "the picture …"."""


def open_image(data: bytes) -> Image.Image:
    """Reads the header of a picture: its format and size, not its pixels.

    Raises:
        ImageError: it is in none of :data:`FORMATS`, is damaged, has more than twice
            ``PIL.Image.MAX_IMAGE_PIXELS``, or is a BMP with run-length encoding: Pillow decodes
            that in Python, in seconds for a file of 200 bytes.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ImageError(f"is not one of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise ImageError("has too many pixels") from error
    except DAMAGED as error:
        raise ImageError("is damaged") from error
    if any(tile.codec_name in Image.DECODERS for tile in getattr(image, "tile", ())):
        raise ImageError("has run-length encoding")
    return image


def to_pixels(image: Image.Image, spec: ImageSpec) -> Pixels:
    """Decodes an opened picture: ``[height, width, channels]``, 0 to 255.

    As in ``load_image`` and the image processors of ``transformers``, the camera's orientation is
    applied, transparent pixels keep their colour, and an animation is reduced to its first frame.
    Unlike there, 16-bit grey keeps its range.

    Raises:
        ImageError: it is damaged, or too narrow to be resized.
    """
    return fitted(open_pixels(image, spec), spec)


def open_pixels(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """Decodes an opened picture with the channels of ``spec``, as :func:`to_pixels`.

    Raises:
        ImageError: it is damaged.
    """
    try:
        return _8_bits(_upright(image)).convert(MODES[spec.num_channels])
    except DAMAGED as error:
        raise ImageError("is damaged") from error


def fitted(picture: Image.Image, spec: ImageSpec) -> Pixels:
    """A decoded picture, resized and cut: ``[height, width, channels]``, 0 to 255.

    Raises:
        ImageError: it is too narrow to be resized.
    """
    width, height = _resized(picture.size, spec)
    if max(width, height) > MAX_SIDE:
        raise ImageError(f"is too narrow: it would become {width} by {height} pixels")
    picture = resized(picture, (width, height), spec)
    left, top = (width - spec.width) // 2, (height - spec.height) // 2
    if (width, height) != (spec.width, spec.height):
        # Pixels outside the picture are black.
        picture = picture.crop((left, top, left + spec.width, top + spec.height))
    return np.asarray(picture).reshape(spec.height, spec.width, spec.num_channels)


def resized(picture: Image.Image, size: tuple[int, int], spec: ImageSpec) -> Image.Image:
    """A decoded picture with another ``size``: width and height."""
    if size == picture.size:
        return picture
    return picture.resize(size, Image.Resampling[spec.resampling.upper()])


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


def _upright(image: Image.Image) -> Image.Image:
    """``image``, rotated or mirrored as its EXIF data say."""
    image.load()  # in some formats, EXIF data follow the pixels
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _8_bits(image: Image.Image) -> Image.Image:
    """``image`` with 8 bits per channel: Pillow would clip 16-bit values at 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))


def _resized(size: tuple[int, int], spec: ImageSpec) -> tuple[int, int]:
    """Width and height after resizing, before cropping."""
    height, width = spec.resize
    if not spec.keeps_aspect_ratio:
        return width, height
    shorter = min(size)
    return height * size[0] // shorter, height * size[1] // shorter
