"""Files with images."""

import base64
import io

import numpy as np
from PIL import Image


def picture(seed: int = 0, file_format: str = "PNG", size: tuple[int, int] = (30, 40)) -> bytes:
    """Random pixels; ``size``: width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format)
    return file.getvalue()


def encoded(data: bytes) -> str:
    """``data`` in base64."""
    return base64.b64encode(data).decode()


def data_address(data: bytes, media_type: str = "image/png") -> str:
    """``data`` as a ``data:`` address."""
    return f"data:{media_type};base64,{encoded(data)}"
