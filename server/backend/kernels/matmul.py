"""Products in fp32 with a constant matrix, and what follows them."""

from collections.abc import Iterator

import numpy as np
import onnx

from server.backend.base import Array
from server.backend.kernels.epilogue import Epilogue, epilogue
from server.backend.kernels.graph import Graph, Replacement

OPERATOR = "PackedMatMul"


def products(graph: Graph) -> Iterator[Replacement]:
    """Those of ``graph``."""
    for node in graph.nodes:
        if node.op_type != "MatMul" or node.domain:
            continue
        tensor = graph.initializers.get(node.input[1])
        if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) != 2:
            continue
        after = epilogue(graph, node, tensor.dims[1])
        packed = {"packed": pack(graph.array(node.input[1]), after)}
        yield after.replacement(graph, OPERATOR, node.input[0], packed)


def pack(matrix: Array, after: Epilogue) -> Array:
    """``matrix [inputs, outputs]`` as ``native/matmul.h`` wants it."""
    return np.ascontiguousarray(after.panels(matrix).swapaxes(0, 1)).reshape(-1)
