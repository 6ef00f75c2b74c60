"""Replaces the step of a simpler simple recurrent unit: native/ssru_operator.h.

The export writes it as ten operators between the products, over one token of each row.
"""

from collections.abc import Iterator

import onnx

from server.runtime.kernels.graph import TOKENS, GraphIndex, Replacement
from server.runtime.kernels.library import DOMAIN

OPERATOR = "Ssru"


def replacements(graph: GraphIndex) -> Iterator[Replacement]:
    """Replaces each ``residual + relu(f past + (1 - f) input)``, ``f`` the sigmoid of a product."""
    if graph.shape(TOKENS)[1:] != (1,):
        return
    for node in graph.nodes:
        if node.op_type == "Sigmoid" and (found := _match(graph, node)) is not None:
            yield found


def _match(graph: GraphIndex, sigmoid: onnx.NodeProto) -> Replacement | None:
    forget = sigmoid.output[0]
    readers = {node.op_type: node for node in graph.consumers(forget)}
    rest = readers.get("Sub")
    weighted = graph.only_consumer(rest, "Mul")
    selected = graph.only_consumer(weighted, "Gather")
    added = graph.only_consumer(selected, "Add")
    kept = graph.only_consumer(readers.get("Gather"), "Mul")
    if rest is None or weighted is None or added is None or kept is None:
        return None
    is_state = graph.consumers(kept.output[0]) == [added] and len(graph.consumers(forget)) == 2
    one = graph.inline_array(rest.input[0])
    state = added.output[0]
    unsqueezed = [node for node in graph.consumers(state) if node.op_type == "Unsqueeze"]
    if not is_state or one is None or one != 1 or len(graph.consumers(state)) != len(unsqueezed):
        return None
    relu = graph.only_consumer(unsqueezed[0] if len(unsqueezed) == 1 else None, "Relu")
    last = graph.only_consumer(relu, "Add")
    if relu is None or last is None:
        return None
    residual = _other(last, relu.output[0])
    if not graph.have_same_shape(residual, sigmoid.input[0]):
        return None
    made = onnx.helper.make_node(
        OPERATOR,
        [
            sigmoid.input[0],
            _other(weighted, rest.output[0]),
            _other(kept, readers["Gather"].output[0]),
            residual,
        ],
        [last.output[0], state],
        name=last.output[0],
        domain=DOMAIN,
    )
    return Replacement(last, made, removed=(added,))


def _other(node: onnx.NodeProto, operand: str) -> str:
    """The operand of ``node`` that is not ``operand``."""
    return str(node.input[1] if node.input[0] == operand else node.input[0])
