"""Types of tensors, as ONNX Runtime names them, as numpy has them, and as a binding wants them."""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from server.runtime.contract import Array

TYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(uint8)": np.dtype(np.uint8),
}
_BFLOAT16 = TYPES["tensor(bfloat16)"]


def element_type(dtype: np.dtype[Any]) -> Any:
    """What an ``IOBinding`` calls ``dtype``: it knows bf16 by ONNX's number alone."""
    return int(onnx.TensorProto.BFLOAT16) if dtype == _BFLOAT16 else dtype.type


def to_array(value: Any) -> Array:
    """An ``OrtValue`` in host memory as an array; one of bf16, which it cannot give, copied."""
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    size = int(np.prod(shape)) * _BFLOAT16.itemsize
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), _BFLOAT16).reshape(shape)
