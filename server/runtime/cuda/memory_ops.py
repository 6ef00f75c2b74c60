"""Small ONNX graphs that allocate, read and transpose tensors in the memory of any device."""

import onnx
from onnx import TensorProto, helper

_OPSET = 18
_IR_VERSION = 10


def read_graph(type_: int) -> onnx.ModelProto:
    """Gathers rows of ``x [rows, width]``: ``y = x[indices]``."""
    node = helper.make_node("Gather", ["x", "indices"], ["y"], axis=0)
    inputs = [
        helper.make_tensor_value_info("x", type_, ["rows", "width"]),
        helper.make_tensor_value_info("indices", TensorProto.INT64, ["count"]),
    ]
    return _make(node, inputs, helper.make_tensor_value_info("y", type_, None))


def zeros_graph(type_: int) -> onnx.ModelProto:
    """Makes ``y``, zeros of the shape in input ``shape [rank]``."""
    value = helper.make_tensor("value", type_, [1], [0])
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=value)
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"])
    return _make(node, [shape], helper.make_tensor_value_info("y", type_, None))


def transpose_graph(type_: int) -> onnx.ModelProto:
    """Transposes ``x [rows, columns]`` to ``y``."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    x = helper.make_tensor_value_info("x", type_, ["rows", "columns"])
    return _make(node, [x], helper.make_tensor_value_info("y", type_, ["columns", "rows"]))


def _make(
    node: onnx.NodeProto, inputs: list[onnx.ValueInfoProto], output: onnx.ValueInfoProto
) -> onnx.ModelProto:
    graph = helper.make_graph([node], "memory_ops", inputs, [output])
    opset = helper.make_opsetid("", _OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
