"""Replaces a step of a simpler simple recurrent unit (SSRU): native/ssru_operator.h.

The export writes the step as ten operators between the products, over one token of each row.
"""

from collections.abc import Iterator

import numpy as np
import onnx

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import TOKENS
from server.runtime.rewriting.nodes import native_node, other_operand
from server.runtime.rewriting.rewrites import Rewrite

OPERATOR = "Ssru"


def fuse_ssru(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces each ``residual + relu(f past + (1 - f) input)``, ``f`` the sigmoid of a value."""
    if graph.shape(TOKENS)[1:] != (1,):
        return
    for node in graph.nodes:
        if node.op_type == "Sigmoid" and (found := _match(graph, node)) is not None:
            yield found


def _match(graph: GraphIndex, sigmoid: onnx.NodeProto) -> Rewrite | None:
    readers = {node.op_type: node for node in graph.consumers(sigmoid.output[0])}
    rest, gathered = readers.get("Sub"), readers.get("Gather")
    weighted = graph.only_consumer(rest, "Mul")
    selected = graph.only_consumer(weighted, "Gather")
    kept = graph.only_consumer(gathered, "Mul")
    added = graph.only_consumer(kept, "Add")
    if rest is None or gathered is None or weighted is None or selected is None:
        return None
    if kept is None or added is None or selected.output[0] not in added.input:
        return None
    state = added.output[0]
    reader = graph.consumers(state)
    unsqueezed = reader[0] if len(reader) == 1 and reader[0].op_type == "Unsqueeze" else None
    relu = graph.only_consumer(unsqueezed, "Relu")
    last = graph.only_consumer(relu, "Add")
    if relu is None or last is None:
        return None
    forget, value = sigmoid.input[0], other_operand(weighted, rest.output[0])
    past, residual = other_operand(kept, gathered.output[0]), other_operand(last, relu.output[0])
    one = graph.inline_array(rest.input[0])
    is_one = one is not None and one.dtype == np.float32 and one.size == 1 and one.item() == 1
    of_tokens, of_rows = graph.shape(forget), graph.shape(past)
    has_shapes = (
        of_tokens[:2] == graph.shape(TOKENS)
        and of_rows == (of_tokens[0], *of_tokens[2:])
        and all(graph.have_same_shape(forget, x) for x in (value, residual, relu.output[0]))
        and all(graph.have_same_shape(past, node.output[0]) for node in (gathered, selected, kept))
    )
    if not is_one or not has_shapes:
        return None
    inputs, outputs = [forget, value, past, residual], [last.output[0], state]
    return Rewrite(last, (native_node(OPERATOR, inputs, outputs),))
