"""What follows a product and can be done with its sums: a bias, an activation, a residual."""

from dataclasses import dataclass
from enum import IntEnum

import onnx

from server.backend.kernels.graph import Graph


class Activation(IntEnum):
    """As in native/epilogue.h."""

    NONE = 0
    RELU = 1
    GELU = 2


@dataclass(frozen=True, slots=True)
class Epilogue:
    """``activation(product + bias) + rest``, which ``last`` ends; empty names are absent."""

    last: onnx.NodeProto
    bias: str = ""
    activation: Activation = Activation.NONE
    rest: str = ""


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
    node = graph.read_by(last, "Add")
    if node is not None:
        other = _other(node, last)
        if graph.have_same_shape(other, last.output[0]):
            last, rest = node, other
    return Epilogue(last, bias, activation, rest)


def _other(add: onnx.NodeProto, node: onnx.NodeProto) -> str:
    """The operand of ``add`` that ``node`` did not make."""
    return str(add.input[1] if add.input[0] == node.output[0] else add.input[0])
