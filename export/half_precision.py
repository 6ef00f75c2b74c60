"""fp16 and bf16 graphs: 16-bit weights on disk, or 16-bit computation.

ONNX Runtime's CPU provider runs fp16 graphs by casting to fp32 and back around most operators,
and has no bf16 kernels. So for a CPU, weights are stored in 16 bits and cast once, when the graph
is loaded. Measurements: docs/decisions/0010-precisions.md.
"""

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from export.quantize import SIGNAL
from model.bundle import Dtype

FLOAT = ir.DataType.FLOAT
HALF_TYPES = {Dtype.FLOAT16: ir.DataType.FLOAT16, Dtype.BFLOAT16: ir.DataType.BFLOAT16}
_NUMPY = {ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16}
_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895e38}
# Operators that read weights.
_WEIGHT_OPERATORS = ("MatMul", "Gemm", "Gather", "Transpose", "Conv", "MoE")
# Operators that sum over many elements: their outputs stay fp32, and so do values computed from
# these alone (pooling). Not every GPU has kernels for them in bf16.
_SUMS = ("ReduceSum", "ReduceL2")
# Operators that look up weights by ids.
_LOOKUP_OPERATORS = ("Gather", "GatherBlockQuantized")
_WEIGHT = ".weight"  # suffix of the names of learned matrices


def store_weights_as(model: ir.Model, stored: Dtype) -> None:
    """Stores weight matrices in 16 bits, in place; the graph still computes in fp32."""
    graph, dtype = model.graph, HALF_TYPES[stored]
    for value in list(graph.initializers.values()):
        uses = tuple(value.uses())
        is_weight = any(use.node.op_type in _WEIGHT_OPERATORS for use in uses)
        if value.dtype != FLOAT or value.shape is None or len(value.shape) < 2 or not is_weight:
            continue
        if any(part in (value.name or "") for part in SIGNAL):
            continue
        cast = _cast_node(_to_half(graph, value, dtype), FLOAT)
        _insert_first(graph, cast)
        for use in uses:
            use.node.replace_input_with(use.idx, cast.outputs[0])
    RemoveUnusedNodesPass()(model)


def convert_floats(model: ir.Model, computed: Dtype, fp32_outputs: frozenset[str]) -> None:
    """Converts activations, weights and states to 16 bits, in place.

    Values computed only from integers (positions, lengths, masks) stay fp32 and are cast where they
    meet an activation, or a matrix that embeds them.

    Args:
        fp32_outputs: names of outputs that stay fp32.
    """
    graph, dtype = model.graph, HALF_TYPES[computed]
    converter = _Converter(graph, dtype)
    for value in graph.inputs:
        if value.dtype == FLOAT:
            converter.set_dtype(value)
    for node in list(graph):
        converter.convert(node)
    for index, value in enumerate(graph.outputs):
        if value in converter and value.name in fp32_outputs:
            name, value.name = value.name, f"{value.name}.narrow"
            cast = _cast_node(value, FLOAT)
            graph.append(cast)
            cast.outputs[0].name, cast.outputs[0].shape = name, value.shape
            graph.outputs[index] = cast.outputs[0]
    RemoveUnusedNodesPass()(model)


class _Converter:
    """Converts nodes in order; contains the values that already have 16 bits."""

    def __init__(self, graph: ir.Graph, dtype: ir.DataType) -> None:
        self._graph, self._dtype = graph, dtype
        self._values: set[ir.Value] = set()
        self._copies: dict[ir.Value, ir.Value] = {}

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def set_dtype(self, value: ir.Value) -> None:
        value.dtype = self._dtype
        self._values.add(value)

    def convert(self, node: ir.Node) -> None:
        """Converts ``node`` if one of its inputs has 16 bits, or if it reads weights."""
        inputs = [value for value in node.inputs if value is not None]
        looks_up = node.op_type in _LOOKUP_OPERATORS and any(
            value.is_initializer() and value.dtype == FLOAT for value in inputs
        )
        if not (looks_up or _embeds(node)) and not any(value in self._values for value in inputs):
            return
        if node.op_type == "Cast":
            return
        if node.op_type in _SUMS:
            for index, value in enumerate(node.inputs):
                if value in self._values:
                    cast = _cast_node(value, FLOAT)
                    self._graph.insert_before(node, cast)
                    node.replace_input_with(index, cast.outputs[0])
            return
        for index, value in enumerate(node.inputs):
            if value is not None and value not in self._values and value.dtype == FLOAT:
                node.replace_input_with(index, self._copy(value, node))
        for output in node.outputs:
            if not output.name and not output.uses():  # omitted output
                continue
            if output.dtype is None:
                raise ValueError(f"{node.op_type} {output.name} has no known element type")
            if output.dtype == FLOAT:
                self.set_dtype(output)

    def _copy(self, value: ir.Value, node: ir.Node) -> ir.Value:
        if value not in self._copies:
            if value.is_initializer():
                copy = _to_half(self._graph, value, self._dtype)
            else:
                cast = _cast_node(value, self._dtype)
                self._graph.insert_before(node, cast)
                copy = cast.outputs[0]
            self._values.add(copy)
            self._copies[value] = copy
        return self._copies[value]


def _embeds(node: ir.Node) -> bool:
    """Whether a product embeds input values, such as pixels, with weights of the model.

    A spectrogram's basis and filters do not count: they are used in fp32.
    """
    weights = node.inputs[1] if node.op_type == "MatMul" else None
    if weights is None or not weights.is_initializer() or weights.dtype != FLOAT:
        return False
    return weights.name is not None and weights.name.endswith(_WEIGHT)


def emulate_bf16_on_cpu(model: ir.Model) -> None:
    """Rewrites a bf16 graph, in place, so that a CPU can run it; for the parity check only.

    Every operator computes in fp32 and its output is rounded to bf16, as a GPU's kernels do.
    """
    graph, bfloat16 = model.graph, ir.DataType.BFLOAT16
    widened: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        if node.op_type == "Cast":
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == bfloat16:
                if value not in widened:
                    cast = _cast_node(value, FLOAT)
                    graph.insert_before(node, cast)
                    widened[value] = cast.outputs[0]
                node.replace_input_with(index, widened[value])
        for output in list(node.outputs):
            if output.dtype == bfloat16:
                _round_to_bf16(graph, node, output)


def _round_to_bf16(graph: ir.Graph, node: ir.Node, output: ir.Value) -> None:
    """Makes ``output`` fp32, and gives its consumers a copy rounded to bf16."""
    cast = _cast_node(output, ir.DataType.BFLOAT16)
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


def _to_half(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """A copy of an initializer in ``dtype``; values out of range saturate."""
    if value.const_value is None:
        raise ValueError(f"{value.name} is not a constant")
    limit = _LARGEST[dtype]
    array = np.clip(value.const_value.numpy(), -limit, limit).astype(_NUMPY[dtype])
    name = f"{value.name}.{dtype.name.lower()}"
    copy = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    copy.dtype, copy.shape = dtype, value.shape
    graph.register_initializer(copy)
    return copy


def _cast_node(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    node = ir.node("Cast", [value], {"to": dtype})
    node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
    return node


def _insert_first(graph: ir.Graph, node: ir.Node) -> None:
    graph.insert_before(graph[0], node)
