"""Finds the multiplications of a graph with constant matrices."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.quantized_matmul import Weight


@dataclass(frozen=True)
class ConstantMatMul:
    """A node that only multiplies its first input by the constant ``matrix``.

    ``is_transposed``: the matrix is ``[outputs, inputs]``, as a tied embedding is.
    """

    node: ir.Node
    matrix: ir.Value
    is_transposed: bool

    @property
    def x(self) -> ir.Value:
        """The node's current input: an earlier replacement may have changed it."""
        x = self.node.inputs[0]
        if x is None:
            raise ValueError(f"the node that multiplies with {self.name} has no input")
        return x

    @property
    def name(self) -> str:
        return self.matrix.name or "weight"

    @property
    def num_inputs(self) -> int:
        """The number of rows of :meth:`weight`."""
        return int(array_of(self.matrix).shape[1 if self.is_transposed else 0])

    def weight(self) -> Weight:
        """The matrix as ``[inputs, outputs]``."""
        matrix = array_of(self.matrix)
        return matrix.T if self.is_transposed else matrix


def constant_matmuls(graph: ir.Graph) -> Iterator[ConstantMatMul]:
    """Every multiplication with a constant matrix.

    That is ``MatMul``, also by a transposed constant, and ``Gemm(transB=1)`` without a bias.
    """
    for node in list(graph):
        if node.domain or node.op_type not in ("MatMul", "Gemm") or len(node.inputs) != 2:
            continue
        x, matrix = node.inputs
        if x is None or matrix is None:
            continue
        is_transposed = node.op_type == "Gemm"
        if is_transposed and not _is_plain_gemm(node):
            continue
        producer = matrix.producer()
        if producer is not None and producer.op_type == "Transpose" and producer.inputs[0]:
            is_transposed, matrix = not is_transposed, producer.inputs[0]
        if is_matrix(matrix):
            yield ConstantMatMul(node, matrix, is_transposed)


def _is_plain_gemm(node: ir.Node) -> bool:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
    return plain | attributes == plain and "transB" in attributes


def is_matrix(value: ir.Value) -> bool:
    """Whether a value is a constant fp32 matrix."""
    tensor = value.const_value
    return tensor is not None and len(tensor.shape) == 2 and tensor.dtype == ir.DataType.FLOAT


def array_of(value: ir.Value) -> NDArray[np.float32]:
    """The array of an fp32 constant."""
    if value.const_value is None:
        raise ValueError(f"{value.name} is not a constant")
    array: NDArray[np.float32] = value.const_value.numpy()
    return array
