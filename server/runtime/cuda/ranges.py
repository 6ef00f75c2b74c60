"""Replaces ranges up to a scalar input, for :mod:`server.runtime.cuda.rewrite`."""

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from server.runtime.cuda.changes import Change, constant
from server.runtime.kernels.graph import GraphIndex

# Operators that turn an int32 scalar into an int64 one. ``Gather`` takes the only item of a vector.
_SCALAR_OPERATORS = ("Cast", "Reshape", "Squeeze", "Gather")


def ranges(graph: GraphIndex) -> Iterator[Change]:
    """Replaces int64 ranges from 0 to an int32 scalar input: the export of ``arange(x.item())``.

    The kernel of ``Range`` reads its limit on the host, but ONNX Runtime would copy the input to
    the device, cast it there, and copy it back. An int32 range reads the input on the host.
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
    """Returns the int32 scalar input from which a value is only cast or reshaped; None if none."""
    while (node := graph.producers.get(name)) is not None:
        if node.op_type not in _SCALAR_OPERATORS:
            return None
        name = node.input[0]
    is_scalar = graph.is_input(name) and not graph.shape(name)
    return name if is_scalar and graph.types.get(name) == TensorProto.INT32 else None
