"""Products in fp32 with a constant matrix, and what follows them."""

from collections.abc import Iterator

import numpy as np
import onnx

from server.runtime.contract import Array
from server.runtime.kernels.epilogue import Epilogue, epilogue
from server.runtime.kernels.graph import Graph, Replacement
from server.runtime.kernels.weights import Form, smallest

OPERATOR = "PackedMatMul"


def products(graph: Graph) -> Iterator[Replacement]:
    """Those of ``graph``: ``MatMul``, and ``Gemm`` that only multiplies."""
    for node in graph.nodes:
        if node.domain or node.op_type not in ("MatMul", "Gemm") or len(node.input) != 2:
            continue
        tensor = graph.initializers.get(node.input[1])
        if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) != 2:
            continue
        is_transposed = False
        if node.op_type == "Gemm":
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            is_transposed = bool(attributes.get("transB", 0))
            if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0:
                continue
        matrix = graph.array(node.input[1])
        matrix = matrix.T if is_transposed else matrix
        after = epilogue(graph, node, matrix.shape[1])
        form, packed = pack(matrix, after)
        yield after.replacement(graph, OPERATOR, node.input[0], {"packed": packed}, form=form)


def pack(matrix: Array, after: Epilogue) -> tuple[Form, Array]:
    """``matrix [inputs, outputs]`` as ``native/matmul.h`` wants it, in the smallest form."""
    return smallest(np.ascontiguousarray(after.panels(matrix).swapaxes(0, 1)))
