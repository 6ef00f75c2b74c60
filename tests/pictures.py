"""Files with images."""

import base64
import io
import struct
import zlib

import numpy as np
from PIL import Image


def picture(seed: int = 0, file_format: str = "PNG", size: tuple[int, int] = (30, 40)) -> bytes:
    """Random pixels; ``size``: width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format)
    return file.getvalue()


def animation() -> bytes:
    """A GIF with three frames."""
    frames = [Image.open(io.BytesIO(picture(seed))) for seed in range(3)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def black(side: int) -> bytes:
    """A PNG of ``side * side`` black pixels, a thousandth of them in bytes or less."""
    row = zlib.compressobj(9)
    parts = [row.compress(bytes(1 + side // 8)) for _ in range(side)]
    return png_file(side, side, b"".join(parts) + row.flush())


def png_file(width: int, height: int, data: bytes) -> bytes:
    """A PNG with one bit per pixel and compressed ``data``."""

    def chunk(name: bytes, content: bytes) -> bytes:
        length, check = struct.pack(">I", len(content)), zlib.crc32(name + content)
        return length + name + content + struct.pack(">I", check)

    header = struct.pack(">2I5B", width, height, 1, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def encoded(data: bytes) -> str:
    """``data`` in base64."""
    return base64.b64encode(data).decode()


def data_address(data: bytes, media_type: str = "image/png") -> str:
    """``data`` as a ``data:`` address."""
    return f"data:{media_type};base64,{encoded(data)}"
