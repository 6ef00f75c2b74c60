"""Replaces fp32 products with a constant matrix, and their epilogues: native/matmul_operator.h."""

from collections.abc import Iterator

import numpy as np
import onnx

from server.runtime.kernels.epilogue import Epilogue, find_epilogue
from server.runtime.kernels.weights import WeightFormat, compress
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import attributes_of
from server.runtime.rewriting.rewrites import Rewrite

OPERATOR = "PackedMatMul"
STANDARD_OPERATORS = ("MatMul", "Gemm")


def fuse_matmul(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces each product with a constant matrix: ``MatMul`` or plain ``Gemm``."""
    for node in graph.nodes:
        if (matrix := _constant_matrix(graph, node)) is None:
            continue
        epilogue = find_epilogue(graph, node, node.input[0], matrix.shape[1])
        weight_format, packed = pack(matrix, epilogue)
        yield epilogue.rewrite(
            graph,
            OPERATOR,
            node.input[0],
            {"packed": packed},
            num_inputs=len(matrix),
            weight_format=int(weight_format),
        )


def pack(matrix: Array, epilogue: Epilogue) -> tuple[WeightFormat, Array]:
    """Packs ``matrix [inputs, outputs]`` as in native/matmul.h. Returns its format and bytes."""
    return compress(np.ascontiguousarray(epilogue.panels(matrix).swapaxes(0, 1)))


def _constant_matrix(graph: GraphIndex, node: onnx.NodeProto) -> Array | None:
    """Returns the right operand ``[inputs, outputs]``; None if ``node`` cannot be replaced."""
    if node.domain or node.op_type not in STANDARD_OPERATORS or len(node.input) != 2:
        return None
    tensor = graph.initializers.get(node.input[1])
    if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) != 2:
        return None
    attributes = attributes_of(node)
    if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0:
        return None
    matrix = graph.array(node.input[1])
    return matrix.T if attributes.get("transB", 0) else matrix
