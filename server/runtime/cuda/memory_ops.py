"""Small ONNX graphs that copy and clear parts of tensors in place, on any device.

A tensor is viewed as ``[units, width]``, where a unit holds the numbers of one head and one token.
Two index lists give the source and target units of a copy, which never leaves the device. Units
are copied bit by bit, so any element type can be copied as another type of the same width.

``ScatterND`` updates in place if its input and output share memory, and then writes only the
indexed units: ONNX Runtime's CPU and CUDA kernels both compare the pointers
(docs/decisions/0080-device-memory.md).
"""

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

_OPSET = 18
_IR_VERSION = 10
FROM, TO = "from", "to"


def move_graph(groups: Sequence[int], types: Sequence[int]) -> onnx.ModelProto:
    """Copies units within each tensor: ``y = x``, with ``y[to] = x[from]``.

    Args:
        groups: for each tensor ``I``, the number ``G`` of its index lists ``from.G [n]`` and
            ``to.G [n, 1]``.
        types: ONNX element types of the tensors; ``x.I`` and ``y.I`` share memory,
            ``[units, width]``.
    """
    nodes = [_gather(f"x.{index}", group, index) for index, group in enumerate(groups)]
    return _model(nodes, groups, types, sources=())


def write_graph(groups: Sequence[int], types: Sequence[int]) -> onnx.ModelProto:
    """Copies as :func:`move_graph` does, but from other tensors, ``source.I [units, width]``."""
    nodes = [_gather(f"source.{index}", group, index) for index, group in enumerate(groups)]
    sources = [
        helper.make_tensor_value_info(f"source.{index}", type_, [f"s{index}", f"w{index}"])
        for index, type_ in enumerate(types)
    ]
    return _model(nodes, groups, types, sources)


def zero_graph(groups: Sequence[int], types: Sequence[int]) -> onnx.ModelProto:
    """Zeroes the units ``to``; otherwise as :func:`move_graph`, without the inputs ``from``."""
    nodes, constants = [], []
    for index, (group, type_) in enumerate(zip(groups, types, strict=True)):
        constants.append(helper.make_tensor(f"zero.{index}", type_, [1], [0]))
        nodes += [
            helper.make_node("Shape", [f"x.{index}"], [f"width.{index}"], start=1),
            helper.make_node("Shape", [f"{TO}.{group}"], [f"count.{index}"], end=1),
            helper.make_node(
                "Concat", [f"count.{index}", f"width.{index}"], [f"size.{index}"], axis=0
            ),
            helper.make_node("Expand", [f"zero.{index}", f"size.{index}"], [f"units.{index}"]),
        ]
    return _model(nodes, groups, types, (), constants, has_from=False)


def read_graph(type_: int) -> onnx.ModelProto:
    """Gathers units: ``y = x[from]``."""
    node = helper.make_node("Gather", ["x", FROM], ["y"], axis=0)
    inputs = [
        helper.make_tensor_value_info("x", type_, ["units", "width"]),
        helper.make_tensor_value_info(FROM, TensorProto.INT64, ["count"]),
    ]
    return _make([node], inputs, [helper.make_tensor_value_info("y", type_, None)], [])


def zeros_graph(type_: int) -> onnx.ModelProto:
    """Makes ``y``, zeros of the shape in input ``shape [rank]``."""
    value = helper.make_tensor("value", type_, [1], [0])
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=value)
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"])
    return _make([node], [shape], [helper.make_tensor_value_info("y", type_, None)], [])


def transpose_graph(type_: int) -> onnx.ModelProto:
    """Transposes ``x [rows, columns]`` to ``y``."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    inputs = [helper.make_tensor_value_info("x", type_, ["rows", "columns"])]
    outputs = [helper.make_tensor_value_info("y", type_, ["columns", "rows"])]
    return _make([node], inputs, outputs, [])


def _gather(source: str, group: int, index: int) -> onnx.NodeProto:
    return helper.make_node("Gather", [source, f"{FROM}.{group}"], [f"units.{index}"], axis=0)


def _model(
    nodes: list[onnx.NodeProto],
    groups: Sequence[int],
    types: Sequence[int],
    sources: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
    *,
    has_from: bool = True,
) -> onnx.ModelProto:
    inputs, outputs = list(sources), []
    for index, (group, type_) in enumerate(zip(groups, types, strict=True)):
        shape = [f"n{index}", f"w{index}"]
        inputs.append(helper.make_tensor_value_info(f"x.{index}", type_, shape))
        outputs.append(helper.make_tensor_value_info(f"y.{index}", type_, shape))
        scatter = [f"x.{index}", f"{TO}.{group}", f"units.{index}"]
        nodes.append(helper.make_node("ScatterND", scatter, [f"y.{index}"]))
    for group in dict.fromkeys(groups):
        count = f"k{group}"
        if has_from:
            name = f"{FROM}.{group}"
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, [count]))
        inputs.append(helper.make_tensor_value_info(f"{TO}.{group}", TensorProto.INT64, [count, 1]))
    return _make(nodes, inputs, outputs, constants)


def _make(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "memory_ops", inputs, outputs, list(constants))
    opset = helper.make_opsetid("", _OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
