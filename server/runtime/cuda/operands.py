"""Values that operators of native/cuda take: their types, sizes and constant rows."""

import onnx

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import other_operand

SUFFIXES: dict[int, str] = {onnx.TensorProto.FLOAT16: "Fp16", onnx.TensorProto.BFLOAT16: "Bf16"}
# Sizes that native/cuda/operators.cc takes are multiples of it.
VECTOR = 8


def split_bias(graph: GraphIndex, name: str) -> tuple[str, str]:
    """A value without the constant row that is added to it, and that row.

    The value itself and "" if it is no such sum, or has more than one reader.
    """
    node = graph.producers.get(name)
    if node is None or node.op_type != "Add" or graph.only_consumer(node) is None:
        return name, ""
    bias = next((row for row in node.input if suffix_of_row(graph, row, 2**31)), "")
    return (other_operand(node, bias), bias) if bias else (name, "")


def suffix_of_row(graph: GraphIndex, name: str, max_size: int) -> str | None:
    """The suffix of operators for a constant row of this type; None for other values."""
    tensor = graph.initializers.get(name)
    if tensor is None or len(tensor.dims) != 1:
        return None
    fits = tensor.dims[0] % VECTOR == 0 and tensor.dims[0] <= max_size
    return SUFFIXES.get(tensor.data_type) if fits else None


def is_vector_size(shape: tuple[str | int, ...]) -> bool:
    """Whether ``shape``, of one axis, is a multiple of :data:`VECTOR`; not if it is unknown."""
    return bool(shape) and isinstance(shape[0], int) and shape[0] > 0 and shape[0] % VECTOR == 0
