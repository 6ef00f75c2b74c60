"""Fuses normalizations with the matrix products before or after them: native/fused_norm.h."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import onnx

from server.runtime.contract import CANDIDATES
from server.runtime.kernels import norms


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a product takes a norm: the input of its scale, before its bias, by operator.

    ``prefix``: of the norm's attributes.
    """

    prefix: str
    inputs: dict[str, int]


_OF_X = _Place("x_norm", {"DynamicInt8MatMul": 13, "DynamicBlockMatMul": 7})
_OF_Y = _Place("y_norm", {"DynamicInt8MatMul": 9, "DynamicBlockMatMul": 5, "PackedMatMul": 5})
NO_X_NORM: dict[str, Any] = {"x_norm_epsilon": 0.0, "x_norm_is_centered": 0}
NO_Y_NORM: dict[str, Any] = {"y_norm_epsilon": 0.0, "y_norm_is_centered": 0}
"""Attributes of a product whose input, or output, is not normalized."""
_MAX_INPUTS = 8192  # kMaxNormalizedInputs of native/fused_norm.h


def fuse_norms(graph: onnx.GraphProto) -> None:
    """Lets products normalize: their output, if only a norm reads it, or the rows they quantize.

    A product normalizes the rows it quantizes if nothing else reads the norm; that takes the
    least time, so it comes first. The kernel for candidates does not normalize.
    """
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 1}
    num_readers = Counter(name for node in graph.node for name in node.input)
    num_readers.update(value.name for value in graph.output)
    products = [
        node for node in graph.node if node.op_type in _OF_Y.inputs and CANDIDATES not in node.input
    ]
    by_output = {node.output[0]: node for node in products}
    by_input = {node.input[0]: node for node in products if node.op_type in _OF_X.inputs}
    for norm in [node for node in graph.node if node.op_type == norms.OPERATOR]:
        x, *weights = norm.input
        y = norm.output[0]
        if y in by_input and num_readers[y] == 1 and sizes[weights[0]] <= _MAX_INPUTS:
            by_input[y].input[0] = x
            _add(by_input[y], norm, weights, _OF_X)
        elif x in by_output and num_readers[x] == 1:
            by_output[x].output[0] = y
            _add(by_output[x], norm, weights, _OF_Y)
        else:
            continue
        graph.node.remove(norm)


def count_norms(node: onnx.NodeProto) -> int:
    """How many norms a native product has."""
    indices = (place.inputs.get(node.op_type) for place in (_OF_X, _OF_Y))
    return sum(index is not None and any(node.input[index : index + 1]) for index in indices)


def _add(product: onnx.NodeProto, norm: onnx.NodeProto, weights: list[str], place: _Place) -> None:
    first = place.inputs[product.op_type]
    inputs = [*product.input, *[""] * (first + 2 - len(product.input))]
    inputs[first : first + len(weights)] = weights
    product.input[:] = inputs
    settings = {a.name: onnx.helper.get_attribute_value(a) for a in norm.attribute}
    for attribute in product.attribute:
        if attribute.name == f"{place.prefix}_epsilon":
            attribute.f = settings["epsilon"]
        elif attribute.name == f"{place.prefix}_is_centered":
            attribute.i = settings["is_centered"]
