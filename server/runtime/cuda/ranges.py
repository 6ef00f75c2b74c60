"""Ranges up to a number that the host gives, for :mod:`server.runtime.cuda.rewrite`."""

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from server.runtime.cuda.changes import Change, constant
from server.runtime.kernels.graph import GraphIndex

# What makes an int64 scalar of an int32 one: a vector of one number has only one to gather.
_SCALAR_OPERATORS = ("Cast", "Reshape", "Squeeze", "Gather")


def ranges(graph: GraphIndex) -> Iterator[Change]:
    """Ranges of int64 from 0 to a scalar input of int32, as exporters write ``arange(x.item())``.

    ONNX Runtime would copy the number to the device, cast it there, and copy it back. The kernel of
    ``Range`` reads its limit on the host; so does the one of int32.
    """
    for node in graph.nodes:
        if node.op_type != "Range":
            continue
        limit = _scalar_input(graph, node.input[1])
        first, step = (graph.inline_array(node.input[index]) for index in (0, 2))
        if limit is None or first is None or step is None or (first != 0) or (step != 1):
            continue
        y = node.output[0]
        zero, one, range_ = (f"{y}.{name}" for name in ("zero", "one", "int32"))
        made = (
            constant(zero, np.array(0, np.int32)),
            constant(one, np.array(1, np.int32)),
            helper.make_node("Range", [zero, limit, one], [range_], name=range_),
            helper.make_node("Cast", [range_], [y], name=y, to=TensorProto.INT64),
        )
        yield Change(node, made)


def _scalar_input(graph: GraphIndex, name: str) -> str | None:
    """The int32 scalar input that a value is, with other types or axes of size 1."""
    while (node := graph.producers.get(name)) is not None:
        if node.op_type not in _SCALAR_OPERATORS:
            return None
        name = node.input[0]
    is_scalar = graph.is_input(name) and not graph.shape(name)
    return name if is_scalar and graph.types.get(name) == TensorProto.INT32 else None
