"""Ranges up to a number that the host gives, for :mod:`server.runtime.cuda.rewrite`."""

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import constant_node
from server.runtime.rewriting.patterns import find_arange
from server.runtime.rewriting.rewrites import Rewrite

# They make an int64 scalar of an int32 one: a vector of one number has only one to gather.
_SCALAR_OPERATORS = ("Cast", "Reshape", "Squeeze", "Gather")


def convert_ranges_to_int32(graph: GraphIndex) -> Iterator[Rewrite]:
    """Ranges of int64 from 0 to a scalar input of int32, as exporters write ``arange(x.item())``.

    ONNX Runtime would copy the number to the device, cast it there, and copy it back. The kernel of
    ``Range`` reads its limit on the host; so does the one of int32.
    """
    for node in graph.nodes:
        y = node.output[0]
        limit = None if find_arange(graph, y) is None else _scalar_input(graph, node.input[1])
        if limit is None:
            continue
        zero, one, range_ = (f"{y}.{name}" for name in ("zero", "one", "int32"))
        new_nodes = (
            constant_node(zero, np.array(0, np.int32)),
            constant_node(one, np.array(1, np.int32)),
            helper.make_node("Range", [zero, limit, one], [range_], name=range_),
            helper.make_node("Cast", [range_], [y], name=y, to=TensorProto.INT64),
        )
        yield Rewrite(node, new_nodes)


def _scalar_input(graph: GraphIndex, name: str) -> str | None:
    """The int32 scalar input that a value is, with other types or axes of size 1."""
    name = graph.skip(name, *_SCALAR_OPERATORS)
    is_scalar = graph.is_input(name) and not graph.shape(name)
    return name if is_scalar and graph.types.get(name) == TensorProto.INT32 else None
