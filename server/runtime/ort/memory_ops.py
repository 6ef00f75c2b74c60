"""Small ONNX graphs that copy and clear parts of tensors where they are, on any device.

A tensor is seen as ``[units, width]``, a unit being the numbers of one head and token. Which
units go where comes in as two lists of integers; the units themselves stay on the device.
Units are copied as bits, so a type of the same width stands for any other.

``ScatterND`` whose input and output are one memory writes the units alone: in ONNX Runtime both
the CPU's and CUDA's kernel compare the pointers (docs/decisions/0080-device-memory.md).
"""

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

_OPSET = 18
_IR_VERSION = 10
FROM, TO = "from", "to"


def move_graph(groups: Sequence[int], types: Sequence[int]) -> onnx.ModelProto:
    """``y = x``, but for the units ``to``, which are those ``from`` of ``x``.

    Args:
        groups: for each tensor, which lists of units it takes: ``from.G [n]``, ``to.G [n, 1]``.
        types: of the tensors; ``x.I`` and ``y.I`` are one memory, ``[units, width]``.
    """
    nodes = [_gather(f"x.{index}", group, index) for index, group in enumerate(groups)]
    return _model(nodes, groups, types, sources=())


def write_graph(groups: Sequence[int], types: Sequence[int]) -> onnx.ModelProto:
    """As :func:`move_graph`, but from other tensors: ``source.I [units, width]``."""
    nodes = [_gather(f"source.{index}", group, index) for index, group in enumerate(groups)]
    sources = [
        helper.make_tensor_value_info(f"source.{index}", type_, [f"s{index}", f"w{index}"])
        for index, type_ in enumerate(types)
    ]
    return _model(nodes, groups, types, sources)


def zero_graph(groups: Sequence[int], types: Sequence[int]) -> onnx.ModelProto:
    """As :func:`move_graph`, but ``to`` becomes zero, and there is no ``from``."""
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
    """``y``: the units ``from`` of ``x``."""
    node = helper.make_node("Gather", ["x", FROM], ["y"], axis=0)
    inputs = [
        helper.make_tensor_value_info("x", type_, ["units", "width"]),
        helper.make_tensor_value_info(FROM, TensorProto.INT64, ["count"]),
    ]
    return _make([node], inputs, [helper.make_tensor_value_info("y", type_, None)], [])


def zeros_graph(type_: int) -> onnx.ModelProto:
    """``y``: zeros of shape ``shape``."""
    value = helper.make_tensor("value", type_, [1], [0])
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=value)
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"])
    return _make([node], [shape], [helper.make_tensor_value_info("y", type_, None)], [])


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
    graph = helper.make_graph(nodes, "rows", inputs, outputs, list(constants))
    opset = helper.make_opsetid("", _OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
