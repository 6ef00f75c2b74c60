"""Replaces ranges up to a scalar input, for :mod:`server.runtime.cuda.rewrite`."""

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import constant_node
from server.runtime.rewriting.patterns import find_arange
from server.runtime.rewriting.rewrites import Rewrite

# Operators that turn an int32 scalar into an int64 one. ``Gather`` takes the only item of a vector.
_SCALAR_OPERATORS = ("Cast", "Reshape", "Squeeze", "Gather")


def convert_ranges_to_int32(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces int64 ranges from 0 to an int32 scalar input: the export of ``arange(x.item())``.

    The kernel of ``Range`` reads its limit on the host, but ONNX Runtime would copy the input to
    the device, cast it there, and copy it back. An int32 range reads the input on the host.
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
    """Returns the int32 scalar input from which a value is only cast or reshaped; None if none."""
    name = graph.skip(name, *_SCALAR_OPERATORS)
    is_scalar = graph.is_input(name) and not graph.shape(name)
    return name if is_scalar and graph.types.get(name) == TensorProto.INT32 else None
