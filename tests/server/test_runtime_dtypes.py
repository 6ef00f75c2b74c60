"""16-bit states in the ONNX Runtime backend: in-place updates and array outputs."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from server.runtime.memory import Tensor
from server.runtime.ort.backend import OrtBackend

TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def accumulator(path: Path, element_type: int) -> Path:
    """A graph with ``present = past + x`` (fp32, then rounded) and ``double = 2x``."""
    nodes = [
        helper.make_node("Cast", ["past"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["wide", "x"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["present"], to=element_type),
        helper.make_node("Add", ["x", "x"], ["two"]),
        helper.make_node("Cast", ["two"], ["double"], to=element_type),
    ]
    graph = helper.make_graph(
        nodes,
        "accumulator",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 3]),
            helper.make_tensor_value_info("past", element_type, ["batch", 1, 3]),
        ],
        [
            helper.make_tensor_value_info("present", element_type, ["batch", 1, 3]),
            helper.make_tensor_value_info("double", element_type, ["batch", "length", 3]),
        ],
    )
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    return path


@pytest.mark.parametrize("has_device_memory", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_updates_16_bit_states_in_place(tmp_path: Path, name: str, has_device_memory: bool) -> None:
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
