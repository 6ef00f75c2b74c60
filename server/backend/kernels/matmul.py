"""Products in fp32 with a constant matrix, and what follows them."""

from collections.abc import Iterator

import numpy as np
import onnx

from server.backend.base import Array
from server.backend.kernels.epilogue import epilogue
from server.backend.kernels.graph import Graph, Replacement
from server.backend.kernels.library import DOMAIN

OPERATOR = "PackedMatMul"
PANEL = 16  # outputs that lie side by side: native/matmul.h


def products(graph: Graph) -> Iterator[Replacement]:
    """Those of ``graph``."""
    for node in graph.nodes:
        if node.op_type != "MatMul" or node.domain:
            continue
        tensor = graph.initializers.get(node.input[1])
        if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) != 2:
            continue
        matrix = graph.array(node.input[1])
        num_outputs = matrix.shape[1]
        after = epilogue(graph, node, num_outputs)
        y = after.last.output[0]
        packed = {
            f"{y}.packed": pack(matrix),
            f"{y}.settings": np.array([num_outputs, after.activation], np.int32),
        }
        inputs = [node.input[0], *packed, after.bias, after.rest]
        made = onnx.helper.make_node(OPERATOR, inputs, [y], name=y, domain=DOMAIN)
        yield Replacement(after.last, made, packed)


def pack(matrix: Array) -> Array:
    """``matrix [inputs, outputs]`` as ``native/matmul.h`` wants it."""
    num_inputs, num_outputs = matrix.shape
    panels = -(-num_outputs // PANEL)
    padded = np.zeros((num_inputs, panels * PANEL), np.float32)
    padded[:, :num_outputs] = matrix
    return np.ascontiguousarray(padded.reshape(num_inputs, panels, PANEL).swapaxes(0, 1)).reshape(
        -1
    )
