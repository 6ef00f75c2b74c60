"""Simplifies a decode graph for runs over exactly one token of each row, in order."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import (
    LOGIT_POSITIONS,
    NUM_CACHED_TOKENS,
    NUM_NEW_TOKENS,
    TOKENS,
)
from server.runtime.rewriting.nodes import attributes_of, other_operand
from server.runtime.rewriting.patterns import find_arange
from server.runtime.rewriting.rewrites import drop_unused

ROWS = "rows"
"""The symbol of the number of rows."""
_SECOND = "second_axis"


def take_one_token(graph: onnx.GraphProto) -> bool:
    """Simplifies a graph: it has logits for every row, and counts no new tokens.

    Returns whether it changed: only if it has the inputs of a decode graph.
    """
    if not _fix_sizes(graph):
        return False
    changed = _drop_selection(graph) | _name_last_positions(graph) | _drop_offsets(graph)
    return drop_unused(graph) or changed


def _fix_sizes(graph: onnx.GraphProto) -> bool:
    """Gives all rows one symbol, and each row one token. Returns whether the inputs are known."""
    shapes = {value.name: value.type.tensor_type.shape for value in graph.input}
    if not {TOKENS, LOGIT_POSITIONS, NUM_CACHED_TOKENS} <= shapes.keys():
        return False
    length = shapes[TOKENS].dim[1].dim_param
    rows = {shapes[name].dim[0].dim_param for name in (TOKENS, LOGIT_POSITIONS, NUM_CACHED_TOKENS)}
    for value in (*graph.input, *graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if length and dim.dim_param == length:
                dim.dim_value = 1
            elif dim.dim_param and dim.dim_param in rows:
                dim.dim_param = ROWS
    return True


def _name_last_positions(graph: onnx.GraphProto) -> bool:
    """Replaces the last position of each row, ``cached + new - 1``: with one new token, ``cached``.

    Returns whether it is read.
    """
    index = GraphIndex(graph, Path())
    last_positions: set[str] = set()
    for node in graph.node:
        total = index.producer(node, 0, "Add") if node.op_type == "Sub" else None
        if total is None or set(total.input) != {NUM_CACHED_TOKENS, NUM_NEW_TOKENS}:
            continue
        one = index.inline_array(node.input[1])
        if one is not None and one.size == 1 and int(one.item()) == 1:
            last_positions.add(node.output[0])
    for node in graph.node:
        node.input[:] = [
            NUM_CACHED_TOKENS if name in last_positions else name for name in node.input
        ]
    return bool(last_positions)


def _drop_offsets(graph: onnx.GraphProto) -> bool:
    """Drops what is added to the position of a row's first new token: for one token, it is 0.

    Returns whether there is such a sum.
    """
    index = GraphIndex(graph, Path())
    sums: dict[str, str] = {}
    for node in graph.node:
        offsets = [name for name in node.input if _counts_new_tokens(index, name)]
        if node.op_type == "Add" and len(offsets) == 1:
            first = other_operand(node, offsets[0])
            if index.have_same_shape(first, node.output[0]):
                sums[node.output[0]] = first
    for node in graph.node:
        node.input[:] = [sums.get(name, name) for name in node.input]
    return bool(sums)


def _counts_new_tokens(index: GraphIndex, name: str) -> bool:
    """Whether a value is ``0, 1, …`` up to the number of columns of the token ids."""
    count = index.producer(find_arange(index, name), 1, "Squeeze")
    shape = index.producer(count, 0, "Shape")
    if shape is None or shape.input[0] != TOKENS:
        return False
    return bool(attributes_of(shape).get("start", 0) == 1)


def _drop_selection(graph: onnx.GraphProto) -> bool:
    """Drops the selection of tokens that get logits: all do, in order.

    What follows is over ``[1, rows, size]``, and then over ``[rows, 1, size]`` as before it.
    """
    index = GraphIndex(graph, Path())
    unselected: dict[str, str] = {}
    for gather in graph.node:
        view = index.producer(gather, 0, "Reshape") if gather.op_type == "Gather" else None
        if view is None or index.skip(gather.input[1], "Cast", "Reshape") != LOGIT_POSITIONS:
            continue
        unsqueeze = index.only_consumer(gather, "Unsqueeze")
        if unsqueeze is not None and index.axes(unsqueeze) == [0]:
            unselected[unsqueeze.output[0]] = view.input[0]
    if not unselected:
        return False
    for node in graph.node:
        if node.op_type == "Squeeze" and index.axes(node) == [0]:
            node.input[1] = _SECOND
        node.input[:] = [unselected.get(name, name) for name in node.input]
    graph.initializer.append(numpy_helper.from_array(np.array([1]), _SECOND))
    for value in graph.value_info:
        dim = value.type.tensor_type.shape.dim
        if len(dim) == 3 and dim[0].dim_value == 1 and dim[1].dim_param == ROWS:
            dim[0].dim_param, dim[1].dim_value = ROWS, 1
    return True
