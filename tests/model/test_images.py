"""Pictures that cannot be read: the message says why, and a header alone is enough."""

import io
import struct
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from model.image_config import ImageSpec, Resampling
from model.images import ImageError, decode_image, encode_png, open_image

SPEC = ImageSpec(
    height=8,
    width=8,
    num_channels=3,
    resize=(8, 8),
    keeps_aspect_ratio=True,
    resampling=Resampling.BILINEAR,
    num_tokens=1,
)
RNG = np.random.default_rng(0)


def encoded(format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    pixels = RNG.integers(0, 256, (40, 60, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(file, format_, **options)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG file that ends before its pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    size = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"")


def reason(data: bytes) -> str:
    with pytest.raises(ImageError) as caught:
        decode_image(data, SPEC)
    return str(caught.value)


def test_another_format_is_named() -> None:
    assert reason(b"") == "is not one of PNG, JPEG, WEBP, GIF, BMP"
    assert reason(b"<svg/>") == "is not one of PNG, JPEG, WEBP, GIF, BMP"
    assert reason(encoded("TIFF")) == "is not one of PNG, JPEG, WEBP, GIF, BMP"


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_truncated_pictures_are_damaged(name: str) -> None:
    data = encoded(name)
    assert reason(data[: len(data) // 2]) == "is damaged"


def test_a_picture_with_a_damaged_chunk_is_damaged() -> None:
    data = bytearray(encoded("PNG"))
    data[data.index(b"IDAT") + 20] ^= 0xFF
    assert reason(bytes(data)) == "is damaged"


def test_the_header_tells_that_there_are_too_many_pixels() -> None:
    with pytest.raises(ImageError, match="has too many pixels"):
        open_image(png_header(60_000, 60_000))
    assert open_image(png_header(60, 50)).size == (60, 50)


def test_sizes_of_large_pictures_are_neither_logged_nor_remembered() -> None:
    program = (
        "import sys; from PIL import Image; from model.images import open_image;"
        "size = open_image(sys.stdin.buffer.read()).size;"
        "print(size, {*getattr(Image, '__warningregistry__', ())} - {'version'})"
    )
    command = [sys.executable, "-c", program]
    data = png_header(10_000, 12_000)
    ran = subprocess.run(command, input=data, capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"(10000, 12000) set()\n", b"")


def test_readers_of_other_formats_are_not_even_imported() -> None:
    program = (
        "import sys; from PIL import Image; from model.images import open_image;"
        "print(open_image(sys.stdin.buffer.read()).format, 'FITS' in Image.OPEN)"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, input=encoded("WEBP"), capture_output=True, check=True)
    assert ran.stdout == b"WEBP False\n"


def test_pictures_that_would_become_too_wide_are_refused() -> None:
    narrow = encode_png(np.zeros((1, 3000, 3), np.uint8))
    assert reason(narrow) == "is too narrow: it would become 24000 by 8 pixels"
