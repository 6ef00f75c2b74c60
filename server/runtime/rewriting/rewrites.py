"""Replaces nodes of an ONNX graph by others, and drops those that nothing reads any more."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx

from server.runtime.memory import Array
from server.runtime.rewriting.nodes import values_read


@dataclass(frozen=True, slots=True, eq=False)
class Rewrite:
    """Puts ``new_nodes`` in the place of ``anchor``.

    They replace all nodes whose outputs they have. Nodes that only lead to replaced ones are
    dropped, because nothing reads them.

    Attributes:
        initializers: new constants, which the caller adds to the graph.
        inputs: new inputs of the graph.
    """

    anchor: onnx.NodeProto
    new_nodes: tuple[onnx.NodeProto, ...]
    initializers: dict[str, Array] = field(default_factory=dict)
    inputs: tuple[onnx.ValueInfoProto, ...] = ()


def apply_rewrites(graph: onnx.GraphProto, rewrites: Iterable[Rewrite]) -> bool:
    """Applies rewrites, of which no two have the same anchor, and drops what is unused.

    Returns:
        Whether the nodes changed.
    """
    by_anchor = {id(rewrite.anchor): rewrite for rewrite in rewrites}
    new_nodes = [node for rewrite in by_anchor.values() for node in rewrite.new_nodes]
    replaced = {name for node in new_nodes for name in node.output if name}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if (rewrite := by_anchor.get(id(node))) is not None:
            nodes += rewrite.new_nodes
        elif replaced.isdisjoint(node.output):
            nodes.append(node)
    inputs = {value.name: value for rewrite in by_anchor.values() for value in rewrite.inputs}
    graph.input.extend(inputs.values())
    del graph.node[:]
    graph.node.extend(nodes)
    return drop_unused(graph) or bool(by_anchor)


def drop_unused(graph: onnx.GraphProto) -> bool:
    """Drops nodes and initializers that no output depends on: runtimes would run the nodes.

    Returns:
        Whether there are such nodes.
    """
    producers = {name: node for node in graph.node for name in node.output}
    used: set[str] = set()
    unvisited = [value.name for value in graph.output]
    while unvisited:
        name = unvisited.pop()
        if name and name not in used:
            used.add(name)
            unvisited += values_read(producers[name]) if name in producers else ()
    nodes = [node for node in graph.node if not used.isdisjoint(node.output)]
    initializers = [tensor for tensor in graph.initializer if tensor.name in used]
    has_unused = len(nodes) < len(graph.node)
    if has_unused:
        del graph.node[:]
        graph.node.extend(nodes)
    if len(initializers) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(initializers)
    return has_unused
