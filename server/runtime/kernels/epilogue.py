"""What follows a product and can be done with its sums: a bias, an activation, a residual."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import onnx

from server.runtime.contract import Array
from server.runtime.kernels.graph import Graph, Replacement
from server.runtime.kernels.library import DOMAIN
from server.runtime.kernels.weights import Form

PANEL = 16  # outputs that lie side by side: native/output.h


class Activation(IntEnum):
    """As in native/output.h."""

    NONE = 0
    RELU = 1
    GELU = 2
    SILU_GATE = 3


@dataclass(frozen=True, slots=True)
class Epilogue:
    """``activation(product + bias) + rest``, which ``last`` ends; empty names are absent."""

    last: onnx.NodeProto
    num_outputs: int
    bias: str = ""
    activation: Activation = Activation.NONE
    rest: str = ""

    def panels(self, columns: Array) -> Array:
        """``[..., outputs]`` with its outputs as panels have them, ``[..., panels, 16]``."""
        *rows, num_outputs = columns.shape
        if self.activation == Activation.SILU_GATE:
            half = num_outputs // 2
            padding = -half % (PANEL // 2)
            halves = _padded(columns.reshape(*rows, 2, half), padding)
            parts = halves.reshape(*rows, 2, -1, PANEL // 2)
            return parts.swapaxes(-3, -2).reshape(*rows, -1, PANEL)
        return _padded(columns, -num_outputs % PANEL).reshape(*rows, -1, PANEL)

    def replacement(
        self,
        graph: Graph,
        operator: str,
        x: str,
        packed: dict[str, Array],
        *others: str,
        form: Form = Form.FLOAT,
    ) -> Replacement:
        """An ``operator`` for all of it, whose matrix is in ``packed``, and ``others`` after it.

        ``form``: of a matrix in fp32.
        """
        y = self.last.output[0]
        named = {f"{y}.{name}": array for name, array in packed.items()}
        settings = f"{y}.settings"
        inputs = [x, *named, *others, settings, "", self.rest, graph.lengths_of(x)]
        named[settings] = np.array([self.num_outputs, self.activation, form], np.int32)
        if self.bias:
            inputs[-3] = f"{y}.bias"
            named[inputs[-3]] = self.panels(graph.array(self.bias)).reshape(-1)
        made = onnx.helper.make_node(operator, inputs, [y], name=y, domain=DOMAIN)
        return Replacement(self.last, made, named)


def epilogue(graph: Graph, product: onnx.NodeProto, num_outputs: int) -> Epilogue:
    """The longest that follows ``product``, of which nothing else reads a part."""
    last, bias, activation, rest = product, "", Activation.NONE, ""
    node = graph.read_by(last, "Add")
    if node is not None and (other := _other(node, last)) in graph.initializers:
        tensor = graph.initializers[other]
        if list(tensor.dims) == [num_outputs] and tensor.data_type == onnx.TensorProto.FLOAT:
            last, bias = node, other
    node = graph.read_by(last, "Gelu", "Relu")
    if node is not None and all(attribute.s == b"none" for attribute in node.attribute):
        last = node
        activation = Activation.GELU if node.op_type == "Gelu" else Activation.RELU
    elif (gated := _silu_gate(graph, last)) is not None:
        last, activation = gated, Activation.SILU_GATE
    node = graph.read_by(last, "Add")
    if node is not None:
        other = _other(node, last)
        if graph.have_same_shape(other, last.output[0]):
            last, rest = node, other
    return Epilogue(last, num_outputs, bias, activation, rest)


def _silu_gate(graph: Graph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The last node of ``silu(first half) * second half`` of what ``node`` makes."""
    split = graph.read_by(node, "Split")
    if split is None or len(split.output) != 2 or not _is_by_halves(graph, split):
        return None
    gate, value = split.output
    sigmoid = next((n for n in graph.readers(gate) if n.op_type == "Sigmoid"), None)
    scaled = graph.read_by(sigmoid, "Mul")
    whole = graph.read_by(scaled, "Mul")
    if sigmoid is None or scaled is None or whole is None:
        return None
    is_ours = (
        {gate, value}.isdisjoint(graph.outputs)
        and len(graph.readers(gate)) == 2
        and len(graph.readers(value)) == 1
        and {*scaled.input} == {gate, sigmoid.output[0]}
        and {*whole.input} == {scaled.output[0], value}
    )
    return whole if is_ours else None


def _is_by_halves(graph: Graph, split: onnx.NodeProto) -> bool:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in split.attribute}
    rank = len(graph.shape(split.input[0]))
    if not rank or attributes.get("axis", 0) not in (-1, rank - 1):
        return False
    if len(split.input) < 2 or not split.input[1]:
        return True
    sizes = graph.small(split.input[1])
    return sizes is not None and len(set(sizes.tolist())) == 1


def _other(add: onnx.NodeProto, node: onnx.NodeProto) -> str:
    """The operand of ``add`` that ``node`` did not make."""
    return str(add.input[1] if add.input[0] == node.output[0] else add.input[0])


def _padded(array: Array, count: int) -> Array:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, count)])
