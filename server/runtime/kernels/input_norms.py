"""Fuses normalizations with the products that quantize their output: native/input_norm.h."""

from collections import Counter

import onnx

from server.runtime.contract import CANDIDATES
from server.runtime.kernels import norms

NO_NORM = {"norm_epsilon": 0.0, "norm_is_centered": 0}
"""Attributes of a product whose input is not normalized."""
# Where the operators that quantize have the scale of a norm; its bias comes next.
_NORM_INPUTS = {"DynamicInt8MatMul": 11, "DynamicBlockMatMul": 5}
_MAX_INPUTS = 8192  # kMaxNormalizedInputs of native/input_norm.h


def fuse_norms(graph: onnx.GraphProto) -> None:
    """Lets each product that is the only reader of a norm normalize its rows itself.

    Not the product with candidates, whose kernel does not normalize.
    """
    norm_nodes = {node.output[0]: node for node in graph.node if node.op_type == norms.OPERATOR}
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 1}
    num_readers = Counter(name for node in graph.node for name in node.input)
    num_readers.update(value.name for value in graph.output)
    for node in tuple(graph.node):
        first = _NORM_INPUTS.get(node.op_type)
        if first is None or CANDIDATES in node.input:
            continue
        norm = norm_nodes.get(node.input[0])
        if norm is None or num_readers[norm.output[0]] != 1 or sizes[norm.input[1]] > _MAX_INPUTS:
            continue
        x, *weights = norm.input
        node.input[0] = x
        node.input.extend([*[""] * (first - len(node.input)), *weights])
        settings = {a.name: onnx.helper.get_attribute_value(a) for a in norm.attribute}
        for attribute in node.attribute:
            if attribute.name == "norm_epsilon":
                attribute.f = settings["epsilon"]
            elif attribute.name == "norm_is_centered":
                attribute.i = settings["is_centered"]
        graph.node.remove(norm)


def has_norm(node: onnx.NodeProto) -> bool:
    """Whether a native node normalizes its input."""
    first = _NORM_INPUTS.get(node.op_type)
    return first is not None and len(node.input) > first
