"""LoRA adapters of matrix products: native/adapters.h.

The export (``export.adapter_graph``) writes products with the factors of each row's adapter, which
are added to the product with the matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from server.runtime.kernels.weights import WITHOUT_BLOCKS, compress
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import other_operand

# The index of the first of the three inputs, by operator.
FIRST_INPUT = {"DynamicInt8MatMul": 15, "DynamicBlockMatMul": 9, "PackedMatMul": 7}
_PANEL_WIDTH = 16

Panels = Callable[[Array], Array]
"""Arranges columns ``[..., outputs]`` as panels ``[..., panels, 16]``."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of a product, which the node ``last`` adds.

    ``index``: the name of the value with the adapter of each row, counted from 1. ``a`` and ``b``:
    the factors ``[adapters, inputs, rank]`` and ``[adapters, rank, outputs]``.
    """

    last: onnx.NodeProto
    x: str
    index: str
    a: Array = field(repr=False)
    b: Array = field(repr=False)

    def inputs(
        self, name: str, panels: Panels
    ) -> tuple[list[str], dict[str, Array], dict[str, Any]]:
        """Packs the factors for the operator.

        Args:
            name: the prefix of the names of the constants.
            panels: arranges columns as the panels of the matrix.

        Returns:
            The names of the inputs, the constants and the attributes.
        """
        padding = -self.a.shape[2] % _PANEL_WIDTH
        a = np.pad(self.a, ((0, 0), (0, 0), (0, padding)))
        b = np.pad(self.b, ((0, 0), (0, padding), (0, 0)))
        a_format, packed_a = _packed(a.reshape(*a.shape[:2], -1, _PANEL_WIDTH))
        b_format, packed_b = _packed(panels(b))
        constants = {f"{name}.adapters.a": packed_a, f"{name}.adapters.b": packed_b}
        attributes = {
            "adapter_rank": a.shape[2],
            "adapter_a_format": a_format,
            "adapter_b_format": b_format,
        }
        return [self.index, *constants], constants, attributes


def _packed(panels: Array) -> tuple[int, Array]:
    """Compresses ``[adapters, inputs, panels, 16]``: the format, and ``[adapters, bytes]``."""
    each = np.ascontiguousarray(panels.astype(np.float32, copy=False).swapaxes(1, 2))
    num_adapters, _, num_inputs, width = each.shape
    weight_format, packed = compress(each.reshape(-1, num_inputs, width), WITHOUT_BLOCKS)
    return int(weight_format), packed.reshape(num_adapters, -1)


NO_ADAPTERS = {"adapter_rank": 0, "adapter_a_format": 0, "adapter_b_format": 0}
"""The attributes of a product without adapters."""


def find_adapters(graph: GraphIndex, product: onnx.NodeProto, x: str) -> Adapters | None:
    """The adapters that are added to ``product`` of ``x``; None without any."""
    add = graph.only_consumer(product, "Add")
    if add is None:
        return None
    change = graph.producers.get(other_operand(add, product.output[0]))
    if change is not None and change.op_type == "Transpose":
        change = graph.producers.get(change.input[0])
    inner = None if change is None else graph.producer(change, 0, "MatMul")
    if change is None or inner is None or change.op_type != "MatMul":
        return None
    a, b = graph.producer(inner, 1, "Gather"), graph.producer(change, 1, "Gather")
    if a is None or b is None or a.input[1] != b.input[1]:
        return None
    if graph.skip(inner.input[0], "Transpose") != x:
        return None
    if not (graph.is_constant(a.input[0]) and graph.is_constant(b.input[0])):
        return None
    # Those of index 0 are zeros.
    return Adapters(
        add, x, a.input[1], graph.constant(a.input[0])[1:], graph.constant(b.input[0])[1:]
    )
