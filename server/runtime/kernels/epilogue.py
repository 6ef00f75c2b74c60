"""Fuses a matrix product with its epilogue: bias, activation, residual (native/epilogue.h)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import onnx

from server.runtime.kernels.adapters import FIRST_INPUT, NO_ADAPTERS, Adapters, find_adapters
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import native_node, other_operand
from server.runtime.rewriting.patterns import find_gated_activation
from server.runtime.rewriting.rewrites import Rewrite

PANEL_WIDTH = 16  # outputs in a packed panel


class Activation(IntEnum):
    """native/epilogue.h has the same numbers."""

    NONE = 0
    RELU = 1
    GELU = 2
    SILU_GATE = 3


@dataclass(frozen=True, slots=True)
class Epilogue:
    """``activation(product + bias) + residual``, whose last node is ``last``.

    ``bias`` and ``residual`` are names of values, or "". ``adapters`` belong to the product.
    """

    last: onnx.NodeProto
    num_outputs: int
    bias: str = ""
    activation: Activation = Activation.NONE
    residual: str = ""
    adapters: Adapters | None = None

    def panels(self, columns: Array) -> Array:
        """Arranges ``[..., outputs]`` as panels ``[..., panels, 16]``, padded with zeros.

        With a gate, each panel has eight outputs of the first half, then the eight of the second
        half that they gate.
        """
        *rows, num_outputs = columns.shape
        if self.activation == Activation.SILU_GATE:
            half = num_outputs // 2
            padding = -half % (PANEL_WIDTH // 2)
            halves = _pad_last_axis(columns.reshape(*rows, 2, half), padding)
            parts = halves.reshape(*rows, 2, -1, PANEL_WIDTH // 2)
            return parts.swapaxes(-3, -2).reshape(*rows, -1, PANEL_WIDTH)
        padded = _pad_last_axis(columns, -num_outputs % PANEL_WIDTH)
        return padded.reshape(*rows, -1, PANEL_WIDTH)

    def rewrite(
        self,
        graph: GraphIndex,
        operator: str,
        x: str,
        matrix: dict[str, Array],
        *others: str,
        **attributes: Any,
    ) -> Rewrite:
        """Replaces product and epilogue by a node of ``operator``.

        Args:
            graph: has the product.
            operator: of the native library.
            x: the left operand.
            matrix: the constants of the packed right operand, in the order of the inputs.
            others: the operator's inputs between the matrix and the bias.
            attributes: ``num_inputs``, and those of the operator that native/matmul_call.h lacks.
        """
        y = self.last.output[0]
        constants = {f"{y}.{name}": array for name, array in matrix.items()}
        inputs = [x, *constants, *others]
        if self.bias:
            constants[f"{y}.bias"] = self.panels(graph.array(self.bias)).reshape(-1)
        inputs += [f"{y}.bias" if self.bias else "", self.residual, graph.lengths_of(x)]
        attributes |= NO_ADAPTERS
        if self.adapters is not None:
            names, added, of_adapters = self.adapters.inputs(
                y, self.panels, is_gated=self.activation == Activation.SILU_GATE
            )
            inputs += [""] * (FIRST_INPUT[operator] - len(inputs)) + names
            constants |= added
            attributes |= of_adapters
        new_node = native_node(
            operator,
            inputs,
            [y],
            num_outputs=self.num_outputs,
            activation=int(self.activation),
            **attributes,
        )
        return Rewrite(self.last, (new_node,), constants)


def find_epilogue(graph: GraphIndex, product: onnx.NodeProto, x: str, num_outputs: int) -> Epilogue:
    """The longest epilogue of ``product`` whose intermediate values nothing else reads.

    ``x``: the value that the native operator multiplies.
    """
    adapters = find_adapters(graph, product, x)
    last, bias = _bias(graph, product if adapters is None else adapters.last, num_outputs)
    last, activation = _activation(graph, last)
    last, residual = _residual(graph, last)
    return Epilogue(last, num_outputs, bias, activation, residual, adapters)


def _bias(
    graph: GraphIndex, product: onnx.NodeProto, num_outputs: int
) -> tuple[onnx.NodeProto, str]:
    add = graph.only_consumer(product, "Add")
    if add is not None and (bias := other_operand(add, product.output[0])) in graph.initializers:
        tensor = graph.initializers[bias]
        if list(tensor.dims) == [num_outputs] and tensor.data_type == onnx.TensorProto.FLOAT:
            return add, bias
    return product, ""


def _activation(graph: GraphIndex, last: onnx.NodeProto) -> tuple[onnx.NodeProto, Activation]:
    node = graph.only_consumer(last, "Gelu", "Relu")
    if node is not None and all(attribute.s == b"none" for attribute in node.attribute):
        return node, Activation.GELU if node.op_type == "Gelu" else Activation.RELU
    split = graph.only_consumer(last, "Split")
    gated = None if split is None else find_gated_activation(graph, split)
    if gated is not None and gated.activation.op_type == "Sigmoid":
        return gated.product, Activation.SILU_GATE
    return last, Activation.NONE


def _residual(graph: GraphIndex, last: onnx.NodeProto) -> tuple[onnx.NodeProto, str]:
    add = graph.only_consumer(last, "Add")
    if add is not None:
        residual = other_operand(add, last.output[0])
        if graph.have_same_shape(residual, last.output[0]):
            return add, residual
    return last, ""


def _pad_last_axis(array: Array, count: int) -> Array:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, count)])
