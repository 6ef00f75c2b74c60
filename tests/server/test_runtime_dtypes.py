"""16-bit states in the ONNX Runtime backend: updated in place, and returned as arrays."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from server.runtime.contract import Tensor
from server.runtime.ort.backend import OrtBackend

TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def accumulator(path: Path, type_: int) -> Path:
    """``present = past + x`` in fp32, rounded to ``type_``; and ``double``, of dynamic length."""
    nodes = [
        helper.make_node("Cast", ["past"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["wide", "x"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["present"], to=type_),
        helper.make_node("Add", ["x", "x"], ["two"]),
        helper.make_node("Cast", ["two"], ["double"], to=type_),
    ]
    graph = helper.make_graph(
        nodes,
        "accumulator",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 3]),
            helper.make_tensor_value_info("past", type_, ["batch", 1, 3]),
        ],
        [
            helper.make_tensor_value_info("present", type_, ["batch", 1, 3]),
            helper.make_tensor_value_info("double", type_, ["batch", "length", 3]),
        ],
    )
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    return path


@pytest.mark.parametrize("has_device_memory", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_sixteen_bit_states_are_updated_in_place(
    tmp_path: Path, name: str, has_device_memory: bool
) -> None:
    backend = OrtBackend("cpu", 1, has_device_memory=has_device_memory)
    graph = backend.load(accumulator(tmp_path / "graph.onnx", TYPES[name]), ())
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else np.float16)
    state = np.array([[[1, 2, 3]], [[0.5, 0, -1]]], dtype)
    x = np.array([[[0.25, 1, 1.0009765625]], [[1, 2, 3]]], np.float32)
    bound = graph.bind({("past", "present"): Tensor.of(state)})
    (double,) = bound.run({"x": x}).values()
    expected = np.array([[[1.25, 3, 4]], [[1.5, 2, 2]]], dtype)
    np.testing.assert_array_equal(state, expected)
    assert double.dtype == dtype
    np.testing.assert_array_equal(double, (2 * x).astype(dtype))
