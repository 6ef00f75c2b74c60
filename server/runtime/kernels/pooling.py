"""Replaces sums over a text's tokens, for pooling: native/token_sum_operator.h.

ONNX Runtime adds the tokens in an order that depends on the padding of the batch.
"""

from collections.abc import Iterator

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import attributes_of, native_node
from server.runtime.rewriting.patterns import sums_tokens
from server.runtime.rewriting.rewrites import Rewrite

OPERATOR = "TokenSum"
STANDARD_OPERATOR = "ReduceSum"


def replace_token_sums(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces each fp32 ``ReduceSum`` of ``[batch, length, size]`` over the tokens."""
    for node in graph.nodes:
        if sums_tokens(graph, node):
            keeps_axis = int(attributes_of(node).get("keepdims", 1))
            new_node = native_node(OPERATOR, node.input[:1], node.output[:1], keeps_axis=keeps_axis)
            yield Rewrite(node, (new_node,))
