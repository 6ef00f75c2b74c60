"""How graphs round inputs to 8 bits: what products in int8 and in blocks have in common."""

import numpy as np
import onnx

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import attributes_of

STEPS = 127.0
"""The number of the largest magnitude: kernels compute with the same."""
STEP = float(np.float32(1 / STEPS))
_SMALLEST_SCALE = float(np.float32(1e-9))


def takes_largest(graph: GraphIndex, reduce: onnx.NodeProto, clamp: onnx.NodeProto) -> bool:
    """Whether ``clamp`` gives the largest value of the last axis, at least 1e-9, as kernels do."""
    return (
        graph.axes(reduce) == [-1]
        and attributes_of(reduce).get("keepdims", 1) == 1
        and [graph.scalar(name) for name in clamp.input[1:]] == [_SMALLEST_SCALE]
    )
