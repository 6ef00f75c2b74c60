"""Changes of graphs for CUDA, and what their patterns share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper, numpy_helper

from server.runtime.kernels.graph import GraphIndex, other_operand
from server.runtime.memory import Array

MICROSOFT = "com.microsoft"
SUFFIXES: dict[int, str] = {onnx.TensorProto.FLOAT16: "Fp16", onnx.TensorProto.BFLOAT16: "Bf16"}
# Sizes that native/cuda/operators.cc takes are multiples of it.
VECTOR = 8


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Puts ``made`` where ``place`` was, and drops it and the nodes ``dropped``."""

    place: onnx.NodeProto
    made: tuple[onnx.NodeProto, ...]
    dropped: tuple[onnx.NodeProto, ...] = ()


def apply_changes(graph: onnx.GraphProto, changes: Sequence[Change]) -> bool:
    """Changes a graph. Returns whether there are changes."""
    made = {id(change.place): change.made for change in changes}
    dropped = {id(node) for change in changes for node in change.dropped}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if id(node) in made:
            nodes += made[id(node)]
        elif id(node) not in dropped:
            nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return bool(changes)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes that a node has, by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def constant(name: str, array: Array) -> onnx.NodeProto:
    """A node whose output ``name`` is an array."""
    return helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(array))


def drop_unread(graph: onnx.GraphProto) -> bool:
    """Drops nodes whose outputs nothing reads: runtimes run them. Returns whether there are any."""
    wanted = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
    is_changed = len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    return is_changed


def take_bias(graph: GraphIndex, name: str) -> tuple[str, str, tuple[onnx.NodeProto, ...]]:
    """What a value is without a constant row that is added to it, that row, and the addition.

    Returns the value itself, "" and nothing if it is no such sum, or has more than one reader.
    """
    node = graph.producers.get(name)
    if node is None or node.op_type != "Add" or name in graph.outputs:
        return name, "", ()
    bias = next((row for row in node.input if suffix_of_row(graph, row, 2**31)), "")
    if not bias or len(graph.consumers(name)) != 1:
        return name, "", ()
    return other_operand(node, bias), bias, (node,)


def suffix_of_row(graph: GraphIndex, name: str, max_size: int) -> str | None:
    """The suffix of operators for a constant row of this type; None for other values."""
    tensor = graph.initializers.get(name)
    if tensor is None or len(tensor.dims) != 1:
        return None
    fits = tensor.dims[0] % VECTOR == 0 and tensor.dims[0] <= max_size
    return SUFFIXES.get(tensor.data_type) if fits else None


def is_vector_size(shape: tuple[str | int, ...]) -> bool:
    """Whether ``shape``, of one axis, is a multiple of :data:`VECTOR`; not if it is unknown."""
    return bool(shape) and isinstance(shape[0], int) and shape[0] > 0 and shape[0] % VECTOR == 0
