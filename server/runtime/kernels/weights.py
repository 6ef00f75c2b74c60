"""Weights in fp32 in fewer bits, where each comes back as it was: native/weights.h.

A checkpoint in 16 bits, or one that was made of 4 or 8 bits by blocks (GGUF), is as large in
memory as it came, and what reads it as much faster; its products are still those of fp32.
"""

import ctypes
from enum import IntEnum

import numpy as np

from server.runtime.contract import Array
from server.runtime.kernels.library import function


class Form(IntEnum):
    """As in native/weights.h."""

    FLOAT = 0
    HALF = 1
    BRAIN = 2
    BYTES = 3
    NIBBLES = 4


_SMALLEST_FIRST = (Form.NIBBLES, Form.BYTES, Form.BRAIN, Form.HALF)


def smallest(panels: Array) -> tuple[Form, Array]:
    """``panels [panels, inputs, 16]``, contiguous, in the smallest form that keeps every bit.

    Returns:
        The form, and what to give the operator: ``[n]``, of type float32 whatever the form.
    """
    num_panels, num_inputs, _ = panels.shape
    if _BYTES is None or _HOLD is None:
        return Form.FLOAT, panels.reshape(-1)
    for form in _SMALLEST_FIRST:
        num_bytes = _BYTES.briefly(form, num_inputs)
        out = np.empty(num_panels * num_bytes // 4, np.float32)
        arguments = (form, panels.ctypes.data, num_panels, num_inputs, out.ctypes.data)
        if num_bytes and _HOLD.lengthily(*arguments):
            return form, out
    return Form.FLOAT, panels.reshape(-1)


_SIZE, _MEMORY = ctypes.c_int64, ctypes.c_void_p
_BYTES = function("triune_weights_bytes", _SIZE, ctypes.c_int32, _SIZE)
_HOLD = function(
    "triune_weights_hold", ctypes.c_int32, ctypes.c_int32, _MEMORY, _SIZE, _SIZE, _MEMORY
)
