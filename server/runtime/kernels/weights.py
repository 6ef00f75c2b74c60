"""Compresses fp32 weights without loss: native/weight_format.h.

A checkpoint with 16 bits, or with blocks of 8 or 4 bits (GGUF), takes only as much memory and
bandwidth as in its own format; its products are those of fp32, bit for bit.
"""

import ctypes
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from server.runtime.kernels.library import load_function
from server.runtime.memory import Array


class WeightFormat(IntEnum):
    """How a packed panel is stored; native/weight_format.h has the same numbers."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT8_BLOCKS = 3
    INT4_BLOCKS = 4
    SMALL_INT4_BLOCKS = 5
    INT6_BLOCKS = 6


_SMALLEST_FIRST = (
    WeightFormat.INT4_BLOCKS,
    WeightFormat.INT8_BLOCKS,
    WeightFormat.BFLOAT16,
    WeightFormat.FLOAT16,
)


WITHOUT_BLOCKS = (WeightFormat.BFLOAT16, WeightFormat.FLOAT16)


def compress(
    panels: Array, formats: Sequence[WeightFormat] = _SMALLEST_FIRST
) -> tuple[WeightFormat, Array]:
    """Compresses fp32 panels ``[panels, inputs, 16]``, contiguous, without changing a weight.

    Returns:
        The first of ``formats`` that holds every weight exactly, or fp32; and the uint8 bytes
        ``[n]``.
    """
    num_panels, num_inputs, _ = panels.shape
    if _PANEL_BYTES is not None and _COMPRESS is not None:
        for weight_format in formats:
            num_bytes = _PANEL_BYTES.holding_gil(weight_format, num_inputs)
            out = np.empty(num_panels * num_bytes, np.uint8)
            arguments = (panels.ctypes.data, num_panels, num_inputs, out.ctypes.data)
            if num_bytes and _COMPRESS.releasing_gil(weight_format, *arguments):
                return weight_format, out
    return WeightFormat.FLOAT32, panels.reshape(-1).view(np.uint8)


_SIZE, _POINTER = ctypes.c_int64, ctypes.c_void_p
_PANEL_BYTES = load_function("triune_panel_bytes", _SIZE, ctypes.c_int32, _SIZE)
_COMPRESS = load_function(
    "triune_compress_panels", ctypes.c_bool, ctypes.c_int32, _POINTER, _SIZE, _SIZE, _POINTER
)
