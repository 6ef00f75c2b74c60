"""Fuses normalizations with the matrix products before or after them.

native/input_norm.h and native/matmul_call.h normalize.
"""

from collections import Counter
from dataclasses import dataclass

import onnx

from server.runtime.contract import CANDIDATES
from server.runtime.kernels import norms
from server.runtime.rewriting.nodes import attributes_of, values_read


@dataclass(frozen=True, slots=True)
class _NormInputs:
    """Where products take a norm: the input of its scale, before its bias, by operator.

    ``prefix``: the prefix of the norm's attributes. ``inputs``: by operator, the index of the input
    for the norm's scale; its bias is the next input.
    """

    prefix: str
    scales: dict[str, int]


_X_NORM = _NormInputs("x_norm", {"DynamicInt8MatMul": 13, "DynamicBlockMatMul": 7})
_Y_NORM = _NormInputs(
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
    num_readers = Counter(name for node in graph.node for name in values_read(node))
    num_readers.update(value.name for value in graph.output)
    products = [node for node in graph.node if node.op_type in _Y_NORM.scales]
    taking = [node for node in products if CANDIDATES not in node.input]
    by_output = {node.output[0]: node for node in taking}
    by_input = {node.input[0]: node for node in taking if node.op_type in _X_NORM.scales}
    for norm in [node for node in graph.node if node.op_type == norms.OPERATOR]:
        x, scale, y = norm.input[0], norm.input[1], norm.output[0]
        if y in by_input and num_readers[y] == 1 and sizes[scale] <= _MAX_INPUTS:
            by_input[y].input[0] = x
            _add(by_input[y], norm, _X_NORM)
        elif x in by_output and num_readers[x] == 1:
            by_output[x].output[0] = y
            _add(by_output[x], norm, _Y_NORM)
        else:
            continue
        graph.node.remove(norm)
    for product in products:
        for taken in (_X_NORM, _Y_NORM):
            if product.op_type in taken.scales and not _has_norm(product, taken):
                _add_attributes(product, taken, epsilon=0.0, is_centered=0)


def count_norms(node: onnx.NodeProto) -> int:
    """Returns how many norms a native product has."""
    return sum(_has_norm(node, taken) for taken in (_X_NORM, _Y_NORM))


def _has_norm(node: onnx.NodeProto, taken: _NormInputs) -> bool:
    index = taken.scales.get(node.op_type)
    return index is not None and any(node.input[index : index + 1])


def _add(product: onnx.NodeProto, norm: onnx.NodeProto, taken: _NormInputs) -> None:
    _, *weights = norm.input
    first = taken.scales[product.op_type]
    inputs = [*product.input, *[""] * (first + 2 - len(product.input))]
    inputs[first : first + len(weights)] = weights
    product.input[:] = inputs
    _add_attributes(product, taken, **attributes_of(norm))


def _add_attributes(
    product: onnx.NodeProto, taken: _NormInputs, *, epsilon: float, is_centered: int
) -> None:
    values = {"epsilon": epsilon, "is_centered": is_centered}
    product.attribute.extend(
        onnx.helper.make_attribute(f"{taken.prefix}_{name}", value)
        for name, value in values.items()
    )
