"""Graphs whose floats have 16 bits: only on the disk, or in all that is computed.

ONNX Runtime's CPU provider computes fp16 graphs by casting to fp32 and back around most
operators, and has no bf16 kernels: there, weights are stored in 16 bits and cast once, when the
graph is loaded. docs/decisions/0010-precisions.md has what was measured.
"""

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from model.bundle import Dtype

FLOAT = ir.DataType.FLOAT
NARROW = {Dtype.FLOAT16: ir.DataType.FLOAT16, Dtype.BFLOAT16: ir.DataType.BFLOAT16}
_NUMPY = {ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16}
_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895e38}
# What reads weights.
_READERS = ("MatMul", "Gemm", "Gather", "Transpose", "Conv", "MoE")
# What makes activations of ids.
_LOOKUPS = ("Gather", "GatherBlockQuantized")


def store_as(model: ir.Model, stored: Dtype) -> None:
    """Stores weight matrices in 16 bits, in place; everything is still computed in fp32."""
    graph, dtype = model.graph, NARROW[stored]
    for value in list(graph.initializers.values()):
        uses = tuple(value.uses())
        is_weight = any(use.node.op_type in _READERS for use in uses)
        if value.dtype != FLOAT or value.shape is None or len(value.shape) < 2 or not is_weight:
            continue
        cast = _cast(_narrowed(graph, value, dtype), FLOAT)
        _first(graph, cast)
        for use in uses:
            use.node.replace_input_with(use.idx, cast.outputs[0])
    RemoveUnusedNodesPass()(model)


def compute_in(model: ir.Model, computed: Dtype, fp32_outputs: frozenset[str]) -> None:
    """Turns activations, weights and states into 16 bits, in place.

    What comes from integers alone (positions, lengths, masks) is computed in fp32 as before, and
    cast where it meets an activation.

    Args:
        fp32_outputs: stay as they are for whoever runs the graph.
    """
    graph, dtype = model.graph, NARROW[computed]
    narrow = _Narrow(graph, dtype)
    for value in graph.inputs:
        if value.dtype == FLOAT:
            narrow.take(value)
    for node in list(graph):
        narrow.visit(node)
    for index, value in enumerate(graph.outputs):
        if value in narrow and value.name in fp32_outputs:
            name, value.name = value.name, f"{value.name}.narrow"
            cast = _cast(value, FLOAT)
            graph.append(cast)
            cast.outputs[0].name, cast.outputs[0].shape = name, value.shape
            graph.outputs[index] = cast.outputs[0]
    RemoveUnusedNodesPass()(model)


class _Narrow:
    """Which values have become 16 bits wide."""

    def __init__(self, graph: ir.Graph, dtype: ir.DataType) -> None:
        self._graph, self._dtype = graph, dtype
        self._values: set[ir.Value] = set()
        self._copies: dict[ir.Value, ir.Value] = {}

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def take(self, value: ir.Value) -> None:
        value.dtype = self._dtype
        self._values.add(value)

    def visit(self, node: ir.Node) -> None:
        """Narrows ``node`` if what it reads is narrow, or if it looks up weights."""
        inputs = [value for value in node.inputs if value is not None]
        looks_up = node.op_type in _LOOKUPS and any(
            value.is_initializer() and value.dtype == FLOAT for value in inputs
        )
        if not looks_up and not any(value in self._values for value in inputs):
            return
        if node.op_type == "Cast":
            return
        for index, value in enumerate(node.inputs):
            if value is not None and value not in self._values and value.dtype == FLOAT:
                node.replace_input_with(index, self._copy(value, node))
        for output in node.outputs:
            if output.dtype is None:
                raise ValueError(f"{node.op_type} {output.name}: of no known type")
            if output.dtype == FLOAT:
                self.take(output)

    def _copy(self, value: ir.Value, node: ir.Node) -> ir.Value:
        if value not in self._copies:
            if value.is_initializer():
                copy = _narrowed(self._graph, value, self._dtype)
            else:
                cast = _cast(value, self._dtype)
                self._graph.insert_before(node, cast)
                copy = cast.outputs[0]
            self._values.add(copy)
            self._copies[value] = copy
        return self._copies[value]


def emulate_on_cpu(model: ir.Model) -> None:
    """Makes a bf16 graph one that a CPU can run, in place: for the parity check only.

    Every operator computes in fp32 and its result is rounded to bf16, as a GPU's kernels do.
    """
    graph, brain = model.graph, ir.DataType.BFLOAT16
    widened: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        if node.op_type == "Cast":
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == brain:
                if value not in widened:
                    cast = _cast(value, FLOAT)
                    graph.insert_before(node, cast)
                    widened[value] = cast.outputs[0]
                node.replace_input_with(index, widened[value])
        for output in list(node.outputs):
            if output.dtype == brain:
                _round(graph, node, output)


def _round(graph: ir.Graph, node: ir.Node, output: ir.Value) -> None:
    """What read ``output`` reads it rounded to bf16; ``output`` itself is fp32 from now on."""
    cast = _cast(output, ir.DataType.BFLOAT16)
    rounded = cast.outputs[0]
    name, rounded.shape = output.name, output.shape
    for use in list(output.uses()):
        if use.node is not cast:
            use.node.replace_input_with(use.idx, rounded)
    output.dtype, output.name = FLOAT, f"{name}.wide"
    rounded.name = name
    graph.insert_after(node, cast)
    for index, value in enumerate(graph.outputs):
        if value is output:
            graph.outputs[index] = rounded


def _narrowed(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """A copy of an initializer in ``dtype``; what is too large becomes the largest there is."""
    if value.const_value is None:
        raise ValueError(f"{value.name} is not a constant")
    limit = _LARGEST[dtype]
    array = np.clip(value.const_value.numpy(), -limit, limit).astype(_NUMPY[dtype])
    name = f"{value.name}.{dtype.name.lower()}"
    copy = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    copy.dtype, copy.shape = dtype, value.shape
    graph.register_initializer(copy)
    return copy


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    node = ir.node("Cast", [value], {"to": dtype})
    node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
    return node


def _first(graph: ir.Graph, node: ir.Node) -> None:
    graph.insert_before(graph[0], node)
