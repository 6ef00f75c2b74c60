"""Replaces ``LayerNormalization`` and ``RMSNormalization`` in fp32: native/norm_operator.h."""

from collections.abc import Iterator

import onnx

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import attributes_of, native_node
from server.runtime.rewriting.rewrites import Rewrite

OPERATOR = "Norm"
STANDARD_OPERATORS = ("LayerNormalization", "RMSNormalization")
_FLOAT32 = 1  # value of the attribute stash_type


def replace_norms(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces each normalization over the last axis whose scale and bias are constant.

    A scale or bias of one number, which the standard operators broadcast, stays with them.
    """
    for node in graph.nodes:
        if node.domain or node.op_type not in STANDARD_OPERATORS:
            continue
        attributes = attributes_of(node)
        axis, stash_type = attributes.get("axis", -1), attributes.get("stash_type", _FLOAT32)
        x, *weights = node.input
        num_outputs = sum(bool(name) for name in node.output)
        if axis != -1 or stash_type != _FLOAT32 or num_outputs != 1:
            continue
        sizes = {_constant_size(graph, name) for name in weights if name}
        if len(sizes) != 1 or (size := sizes.pop()) is None:
            continue
        if size == 1 and graph.shape(x)[-1:] != (1,):
            continue
        new_node = native_node(
            OPERATOR,
            [x, *weights],
            node.output[:1],
            epsilon=attributes.get("epsilon", 1e-5),
            is_centered=int(node.op_type == "LayerNormalization"),
        )
        yield Rewrite(node, (new_node,))


def _constant_size(graph: GraphIndex, name: str) -> int | None:
    """Returns the size of a constant fp32 vector; None if it is something else."""
    tensor = graph.initializers.get(name)
    if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) != 1:
        return None
    return int(tensor.dims[0])
