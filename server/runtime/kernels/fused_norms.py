"""Fuses normalizations with the matrix products before or after them.

native/input_norm.h and native/matmul_call.h normalize.
"""

from collections import Counter
from dataclasses import dataclass

import onnx

from server.runtime.contract import CANDIDATES
from server.runtime.kernels import norms


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a product takes a norm.

    ``prefix``: the prefix of the norm's attributes. ``inputs``: by operator, the index of the input
    for the norm's scale; its bias is the next input.
    """

    prefix: str
    inputs: dict[str, int]


_OF_X = _Place("x_norm", {"DynamicInt8MatMul": 13, "DynamicBlockMatMul": 7})
_OF_Y = _Place(
    "y_norm",
    {
        "DynamicInt8MatMul": 9,
        "DynamicBlockMatMul": 5,
        "PackedMatMul": 5,
        "Embedding": 7,
        "BlockEmbedding": 6,
    },
)
_MAX_INPUTS = 8192  # kMaxNormalizedInputs of native/input_norm.h


def fuse_norms(graph: onnx.GraphProto) -> None:
    """Lets products normalize: the rows they quantize, or their output.

    A product normalizes the rows it quantizes if nothing else reads the norm; that is fastest, so
    it is tried first. It normalizes its output if only the norm reads it. The kernel for candidates
    does not normalize. Every product gets the attributes of norms, even if it has none.
    """
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 1}
    num_readers = Counter(name for node in graph.node for name in node.input)
    num_readers.update(value.name for value in graph.output)
    products = [node for node in graph.node if node.op_type in _OF_Y.inputs]
    taking = [node for node in products if CANDIDATES not in node.input]
    by_output = {node.output[0]: node for node in taking}
    by_input = {node.input[0]: node for node in taking if node.op_type in _OF_X.inputs}
    for norm in [node for node in graph.node if node.op_type == norms.OPERATOR]:
        x, scale, y = norm.input[0], norm.input[1], norm.output[0]
        if y in by_input and num_readers[y] == 1 and sizes[scale] <= _MAX_INPUTS:
            by_input[y].input[0] = x
            _add(by_input[y], norm, _OF_X)
        elif x in by_output and num_readers[x] == 1:
            by_output[x].output[0] = y
            _add(by_output[x], norm, _OF_Y)
        else:
            continue
        graph.node.remove(norm)
    for product in products:
        for place in (_OF_X, _OF_Y):
            if product.op_type in place.inputs and not _has_norm(product, place):
                _add_attributes(product, place, epsilon=0.0, is_centered=0)


def count_norms(node: onnx.NodeProto) -> int:
    """Returns how many norms a native product has."""
    return sum(_has_norm(node, place) for place in (_OF_X, _OF_Y))


def _has_norm(node: onnx.NodeProto, place: _Place) -> bool:
    index = place.inputs.get(node.op_type)
    return index is not None and any(node.input[index : index + 1])


def _add(product: onnx.NodeProto, norm: onnx.NodeProto, place: _Place) -> None:
    _, *weights = norm.input
    first = place.inputs[product.op_type]
    inputs = [*product.input, *[""] * (first + 2 - len(product.input))]
    inputs[first : first + len(weights)] = weights
    product.input[:] = inputs
    settings = {a.name: onnx.helper.get_attribute_value(a) for a in norm.attribute}
    _add_attributes(product, place, **settings)


def _add_attributes(
    product: onnx.NodeProto, place: _Place, *, epsilon: float, is_centered: int
) -> None:
    values = {"epsilon": epsilon, "is_centered": is_centered}
    product.attribute.extend(
        onnx.helper.make_attribute(f"{place.prefix}_{name}", value)
        for name, value in values.items()
    )
