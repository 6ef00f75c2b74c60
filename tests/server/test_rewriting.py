"""Rewrites of graphs: nodes that are replaced, and what nothing reads any more."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.patterns import find_arange, find_gated_activation
from server.runtime.rewriting.rewrites import Rewrite, apply_rewrites, drop_unused
from tests.server.cuda_graphs import FLOAT, FLOAT16, gated, make_graph, node, values

ROW = {"row": np.ones(2, np.float32), "other": np.ones(2, np.float32)}


def graph_of(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return make_graph(nodes, values(FLOAT, x=(2,)), values(FLOAT, y=(2,)), ROW).graph


def operators(graph: onnx.GraphProto) -> list[str]:
    return [each.op_type for each in graph.node]


def initializers(graph: onnx.GraphProto) -> list[str]:
    return [tensor.name for tensor in graph.initializer]


def test_new_nodes_replace_all_nodes_whose_outputs_they_have() -> None:
    graph = graph_of(
        node("Neg", ["x"], "negative"),
        node("Add", ["negative", "row"], "sum"),
        node("Relu", ["sum"], "positive"),
        node("Mul", ["sum", "positive"], "y"),
    )
    new_node = node("Split", ["x", "other"], "sum", "positive")
    assert apply_rewrites(graph, [Rewrite(graph.node[1], (new_node,))])
    assert operators(graph) == ["Split", "Mul"]
    assert initializers(graph) == ["other"]


def test_rewrites_add_an_input_once() -> None:
    graph = graph_of(node("Neg", ["x"], "negative"), node("Relu", ["negative"], "y"))
    inputs = tuple(values(FLOAT, z=(2,)))
    before = list(graph.node)
    rewrites = (
        Rewrite(each, (node("Add", [each.input[0], "z"], each.output[0]),), inputs=inputs)
        for each in before
    )
    assert apply_rewrites(graph, rewrites)
    assert operators(graph) == ["Add", "Add"]
    assert [value.name for value in graph.input] == ["x", "z"]


def test_a_graph_without_rewrites_stays() -> None:
    graph = graph_of(node("Add", ["x", "row"], "y"))
    assert not apply_rewrites(graph, [])
    assert operators(graph) == ["Add"]


@pytest.mark.parametrize("reverses", [False, True])
def test_unused_nodes_are_dropped_in_any_order(reverses: bool) -> None:
    nodes = [
        node("Add", ["x", "row"], "sum"),
        node("Neg", ["sum"], "y"),
        node("Add", ["sum", "other"], "unused"),
        node("Relu", ["unused"], "unused_too"),
    ]
    graph = graph_of(*nodes)
    if reverses:
        nodes = list(reversed(graph.node))
        del graph.node[:]
        graph.node.extend(nodes)
    assert drop_unused(graph)
    assert sorted(operators(graph)) == ["Add", "Neg"]
    assert initializers(graph) == ["row"]
    assert not drop_unused(graph)


def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A branch of an ``If``, which gives the output of the last node."""
    output = onnx.ValueInfoProto(name=nodes[-1].output[0])
    return onnx.helper.make_graph(nodes, "branch", [], [output])


def test_what_subgraphs_read_stays() -> None:
    nested = onnx.helper.make_node(
        "If",
        ["is_deep"],
        ["deep"],
        then_branch=branch(node("Neg", ["sum"], "then_deep")),
        else_branch=branch(node("Neg", ["other"], "else_deep")),
    )
    chosen = onnx.helper.make_node(
        "If",
        ["is_then"],
        ["chosen"],
        then_branch=branch(nested),
        else_branch=branch(node("Relu", ["negative"], "else")),
    )
    graph = graph_of(
        node("Add", ["x", "row"], "sum"),
        node("Neg", ["x"], "negative"),
        node("Add", ["negative", "row"], "unused"),
        chosen,
        node("Add", ["sum", "chosen"], "y"),
    )
    index = GraphIndex(graph, Path())
    assert [reader.op_type for reader in index.consumers("sum")] == ["If", "Add"]
    assert index.only_consumer(graph.node[0]) is None
    assert drop_unused(graph)
    assert operators(graph) == ["Add", "Neg", "If", "Add"]
    assert initializers(graph) == ["row", "other"]


@pytest.mark.parametrize(
    ("start", "step", "is_found"), [(0, 1, True), (1, 1, False), (0, 2, False)]
)
def test_aranges_are_found(start: int, step: int, is_found: bool) -> None:
    graph = make_graph(
        [node("Range", ["start", "limit", "step"], "y")],
        values(onnx.TensorProto.INT64, limit=()),
        values(onnx.TensorProto.INT64, y=("length",)),
        {"start": np.array(start), "step": np.array(step)},
    ).graph
    found = find_arange(GraphIndex(graph, Path()), "y")
    assert (found is not None) == is_found


@pytest.mark.parametrize(("axis", "is_found"), [(-1, True), (1, False)])
def test_gated_activations_are_found(axis: int, is_found: bool) -> None:
    graph = gated(FLOAT16, {}, axis=axis).graph
    found = find_gated_activation(GraphIndex(graph, Path()), graph.node[0])
    assert (found is not None) == is_found
    if found is not None:
        assert (found.activation.op_type, found.product.output[0]) == ("Sigmoid", "product")
