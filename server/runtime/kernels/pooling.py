"""Replaces sums over a text's tokens, for pooling: native/token_sum_operator.h.

ONNX Runtime adds the tokens in an order that depends on the padding of the batch.
"""

from collections.abc import Iterator

import onnx

from server.runtime.kernels.graph import TOKENS, GraphIndex, Replacement
from server.runtime.kernels.library import DOMAIN

OPERATOR = "TokenSum"
STANDARD_OPERATOR = "ReduceSum"


def replacements(graph: GraphIndex) -> Iterator[Replacement]:
    """Replaces each fp32 ``ReduceSum`` of ``[batch, length, size]`` over the tokens."""
    for node in graph.nodes:
        if not sums_tokens(graph, node):
            continue
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        made = onnx.helper.make_node(
            OPERATOR,
            [node.input[0]],
            [node.output[0]],
            name=node.output[0],
            domain=DOMAIN,
            keeps_axis=int(attributes.get("keepdims", 1)),
        )
        yield Replacement(node, made)


def sums_tokens(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether ``node`` is an fp32 ``ReduceSum`` of ``[batch, length, size]`` over the tokens."""
    if node.domain or node.op_type != STANDARD_OPERATOR or len(node.input) != 2:
        return False
    axes, x = graph.inline_array(node.input[1]), node.input[0]
    if axes is None or axes.tolist() != [1] or graph.types.get(x) != onnx.TensorProto.FLOAT:
        return False
    tokens, shape = graph.shape(TOKENS), graph.shape(x)
    return len(shape) == 3 and shape[:2] == tokens
