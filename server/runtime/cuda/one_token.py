"""Simplifies a decode graph for runs over exactly one token of each row, in order."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from server.runtime.cuda.changes import drop_unread
from server.runtime.kernels.graph import LOGIT_POSITIONS, TOKENS, GraphIndex, other_operand

NUM_CACHED_TOKENS, _NUM_NEW_TOKENS = "num_cached_tokens", "num_new_tokens"
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
    return drop_unread(graph) | changed


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
    found: set[str] = set()
    for node in graph.node:
        total = index.producer(node, 0, "Add") if node.op_type == "Sub" else None
        one = index.inline_array(node.input[1]) if total is not None else None
        if total is None or one is None or one.size != 1 or int(one.item()) != 1:
            continue
        if set(total.input) == {NUM_CACHED_TOKENS, _NUM_NEW_TOKENS}:
            found.add(node.output[0])
    for node in graph.node:
        node.input[:] = [NUM_CACHED_TOKENS if name in found else name for name in node.input]
    return bool(found)


def _drop_offsets(graph: onnx.GraphProto) -> bool:
    """Drops what is added to the position of a row's first new token: for one token, it is 0.

    Returns whether there is such a sum.
    """
    index = GraphIndex(graph, Path())
    found: dict[str, str] = {}
    for node in graph.node:
        offsets = [name for name in node.input if _counts_new_tokens(index, name)]
        if node.op_type == "Add" and len(offsets) == 1:
            first = other_operand(node, offsets[0])
            if index.have_same_shape(first, node.output[0]):
                found[node.output[0]] = first
    for node in graph.node:
        node.input[:] = [found.get(name, name) for name in node.input]
    return bool(found)


def _counts_new_tokens(index: GraphIndex, name: str) -> bool:
    """Whether a value is ``0, 1, …`` up to the number of columns of the token ids."""
    node = index.producers.get(name)
    if node is None or node.op_type != "Range":
        return False
    first, step = (index.inline_array(node.input[place]) for place in (0, 2))
    shape = index.producer(index.producer(node, 1, "Squeeze"), 0, "Shape")
    if first is None or step is None or shape is None or shape.input[0] != TOKENS:
        return False
    is_columns = any(a.name == "start" and a.i == 1 for a in shape.attribute)
    return is_columns and int(first.item()) == 0 and int(step.item()) == 1


def _drop_selection(graph: onnx.GraphProto) -> bool:
    """Drops the selection of tokens that get logits: all do, in order.

    What follows is over ``[1, rows, size]``, and then over ``[rows, 1, size]`` as before it.
    """
    index = GraphIndex(graph, Path())
    replaced: dict[str, str] = {}
    for gather in graph.node:
        view = index.producer(gather, 0, "Reshape") if gather.op_type == "Gather" else None
        if view is None or not _reads_positions(index, gather):
            continue
        unsqueeze = index.only_consumer(gather, "Unsqueeze")
        if unsqueeze is not None and _axes(index, unsqueeze) == [0]:
            replaced[unsqueeze.output[0]] = view.input[0]
    if not replaced:
        return False
    for node in graph.node:
        if node.op_type == "Squeeze" and _axes(index, node) == [0]:
            node.input[1] = _SECOND
        node.input[:] = [replaced.get(name, name) for name in node.input]
    graph.initializer.append(numpy_helper.from_array(np.array([1]), _SECOND))
    for value in graph.value_info:
        dim = value.type.tensor_type.shape.dim
        if len(dim) == 3 and dim[0].dim_value == 1 and dim[1].dim_param == ROWS:
            dim[0].dim_param, dim[1].dim_value = ROWS, 1
    return True


def _axes(index: GraphIndex, node: onnx.NodeProto) -> list[int]:
    """The constant axes that a node squeezes or adds; empty if it names none."""
    axes = index.inline_array(node.input[1]) if len(node.input) > 1 else None
    return [] if axes is None else axes.tolist()


def _reads_positions(index: GraphIndex, gather: onnx.NodeProto) -> bool:
    name = gather.input[1]
    while (node := index.producers.get(name)) is not None:
        if node.op_type not in ("Cast", "Reshape"):
            return False
        name = node.input[0]
    return name == LOGIT_POSITIONS
