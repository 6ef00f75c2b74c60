"""Patterns of nodes that graphs for CPUs and for GPUs share."""

from typing import NamedTuple

import onnx

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import TOKENS
from server.runtime.rewriting.nodes import attributes_of


class GatedActivation(NamedTuple):
    """``activation(a) * b`` of the halves ``a`` and ``b`` of each row.

    ``activation``: a ``Gelu``, or the ``Sigmoid`` of SiLU. ``product``: the last node.
    """

    activation: onnx.NodeProto
    product: onnx.NodeProto


def find_gated_activation(graph: GraphIndex, split: onnx.NodeProto) -> GatedActivation | None:
    """The gated activation of which ``split`` makes the halves; nothing else reads its parts."""
    if split.op_type != "Split" or not _splits_in_halves(graph, split):
        return None
    gate, value = split.output
    readers = {node.op_type: node for node in graph.consumers(gate)}
    if readers.keys() == {"Sigmoid", "Mul"}:
        activation = readers["Sigmoid"]
        activated = graph.only_consumer(activation, "Mul")
    elif readers.keys() == {"Gelu"}:
        activation = activated = readers["Gelu"]
    else:
        return None
    product = graph.only_consumer(activated, "Mul")
    if activated is None or product is None:
        return None
    is_gated = (
        graph.outputs.isdisjoint(split.output)
        and len(graph.consumers(gate)) == len(readers)
        and len(graph.consumers(value)) == 1
        and gate in activated.input
        and {*product.input} == {activated.output[0], value}
    )
    return GatedActivation(activation, product) if is_gated else None


def _splits_in_halves(graph: GraphIndex, split: onnx.NodeProto) -> bool:
    rank = len(graph.shape(split.input[0]))
    axis = attributes_of(split).get("axis", 0)
    if len(split.output) != 2 or not rank or axis not in (-1, rank - 1):
        return False
    if len(split.input) < 2 or not split.input[1]:
        return True
    sizes = graph.inline_array(split.input[1])
    return sizes is not None and len(set(sizes.tolist())) == 1


def find_arange(graph: GraphIndex, name: str) -> onnx.NodeProto | None:
    """The ``Range`` that gives a value, if that is 0, 1, 2, …"""
    node = graph.producers.get(name)
    if node is None or node.domain or node.op_type != "Range":
        return None
    start, step = graph.scalar(node.input[0]), graph.scalar(node.input[2])
    return node if (start, step) == (0, 1) else None


def sums_tokens(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether ``node`` is an fp32 ``ReduceSum`` of ``[batch, length, size]`` over the tokens."""
    if node.domain or node.op_type != "ReduceSum" or graph.axes(node) != [1]:
        return False
    tokens, shape = graph.shape(TOKENS), graph.shape(node.input[0])
    is_fp32 = graph.types.get(node.input[0]) == onnx.TensorProto.FLOAT
    return is_fp32 and len(shape) == 3 and shape[:2] == tokens
