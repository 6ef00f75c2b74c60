"""Normalisation of rows: ``LayerNormalization`` and ``RMSNormalization`` of the last axis."""

from collections.abc import Iterator

import onnx

from server.runtime.kernels.graph import Graph, Replacement
from server.runtime.kernels.library import DOMAIN

OPERATOR = "Norm"
_IN_FLOAT = 1  # of the attribute stash_type


def norms(graph: Graph) -> Iterator[Replacement]:
    """Those of ``graph`` in fp32, whose scale and bias are constant."""
    for node in graph.nodes:
        if node.domain or node.op_type not in ("LayerNormalization", "RMSNormalization"):
            continue
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        axis, stash = attributes.get("axis", -1), attributes.get("stash_type", _IN_FLOAT)
        x, *weights = node.input
        if axis != -1 or stash != _IN_FLOAT or len([name for name in node.output if name]) != 1:
            continue
        if not all(_is_constant(graph, name) for name in weights if name):
            continue
        made = onnx.helper.make_node(
            OPERATOR,
            [x, *weights],
            [node.output[0]],
            name=node.output[0],
            domain=DOMAIN,
            epsilon=attributes.get("epsilon", 1e-5),
            is_centered=int(node.op_type == "LayerNormalization"),
        )
        yield Replacement(node, made)


def _is_constant(graph: Graph, name: str) -> bool:
    tensor = graph.initializers.get(name)
    return (
        tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 1
    )
