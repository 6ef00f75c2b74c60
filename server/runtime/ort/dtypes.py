"""Tensor element types: ONNX Runtime name ↔ NumPy dtype ↔ IO-binding code."""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from server.runtime.memory import Array

DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(uint8)": np.dtype(np.uint8),
}
_BFLOAT16 = DTYPES["tensor(bfloat16)"]


def element_type(dtype: np.dtype[Any]) -> Any:
    """Returns the element type that ``IOBinding`` expects: for bf16 ONNX's number, else NumPy's."""
    return int(onnx.TensorProto.BFLOAT16) if dtype == _BFLOAT16 else dtype.type


def to_array(value: Any) -> Array:
    """Returns an ``OrtValue`` in host memory as an array; copies bf16, which ``numpy()`` lacks."""
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    size = int(np.prod(shape)) * _BFLOAT16.itemsize
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), _BFLOAT16).reshape(shape)
