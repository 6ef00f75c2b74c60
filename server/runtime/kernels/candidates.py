"""Lets the output projection compute only a few columns per row: native/candidate_matmul.h."""

import dataclasses

import numpy as np
import onnx

from server.runtime.contract import CANDIDATES
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import shape_of
from server.runtime.rewriting.nodes import attributes_of, copy_of
from server.runtime.rewriting.rewrites import Rewrite

LOGITS = "logits"
COLUMNS = "logits.columns"
BLOCK = 64  # the number of inputs that a micro-kernel reads at once

_CANDIDATES_INPUT = onnx.helper.make_tensor_value_info(
    CANDIDATES, onnx.TensorProto.INT32, ["rows", "width"]
)


def with_candidates(rewrite: Rewrite, weights: Array) -> Rewrite:
    """Adds the input :data:`CANDIDATES` to the int8 product of ``weights`` if it computes logits.

    The node also gets a copy of the weights ``[inputs, outputs]``, in a layout for reading single
    columns.
    """
    (node,) = rewrite.new_nodes
    _, residual, lengths = node.input[-3:]
    has_activation = bool(attributes_of(node)["activation"])
    if list(node.output) != [LOGITS] or has_activation or residual or lengths:
        return rewrite
    new_node = copy_of(node)
    new_node.input.extend(["", "", COLUMNS, CANDIDATES])  # logits have no norm
    return dataclasses.replace(
        rewrite,
        new_nodes=(new_node,),
        initializers={**rewrite.initializers, COLUMNS: columns_of(weights)},
        inputs=(*rewrite.inputs, _CANDIDATES_INPUT),
    )


def columns_of(weights: Array) -> Array:
    """Arranges ``[inputs, outputs]`` as the columns of ``candidate_matmul::Matrix``."""
    return np.ascontiguousarray(np.pad(weights.T, ((0, 0), (0, -len(weights) % BLOCK))))


def make_width_dynamic(graph: onnx.GraphProto) -> dict[str, tuple[str | int, ...]]:
    """Makes the width of the logits dynamic if their node takes candidates.

    Returns:
        The shapes that the changed outputs were declared with, by name.
    """
    if not any(CANDIDATES in node.input for node in graph.node):
        return {}
    (logits,) = (value for value in graph.output if value.name == LOGITS)
    declared = {LOGITS: shape_of(logits)}
    logits.type.tensor_type.shape.dim[-1].dim_param = "logit_width"
    return declared
