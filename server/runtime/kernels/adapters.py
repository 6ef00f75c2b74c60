"""LoRA adapters of matrix products: native/adapters.h.

The export (``export.adapter_graph``) writes products with the factors of each row's adapter, which
are added to the product with the matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from server.runtime.kernels.weights import WITHOUT_BLOCKS, WeightFormat, compress
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import other_operand

# The index of the first of the four inputs, by operator.
FIRST_INPUT = {"DynamicInt8MatMul": 15, "DynamicBlockMatMul": 9, "PackedMatMul": 7}
ADAPTER_PART = ".adapters."  # of the names of constants
_PANEL_WIDTH = 16
_GATES, _GATED = 1, 2  # native/adapter_products.h
_MAX_BLOCKS = 8

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
        self, name: str, panels: Panels, *, is_gated: bool
    ) -> tuple[list[str], dict[str, Array], dict[str, Any]]:
        """Packs the factors for the operator.

        Args:
            name: the prefix of the names of the constants.
            panels: arranges columns as the panels of the matrix.
            is_gated: whether these interleave two halves of the columns.

        Returns:
            The names of the inputs, the constants and the attributes.
        """
        blocks = _blocks(self.b, is_gated=is_gated)
        a = np.pad(self.a, ((0, 0), (0, 0), (0, -self.a.shape[2] % _PANEL_WIDTH)))
        a_format, packed_a = _packed([a.reshape(*a.shape[:2], -1, _PANEL_WIDTH)])
        b_format, packed_b = _packed([block.panels(self.b, panels) for block in blocks])
        constants = {
            f"{name}{ADAPTER_PART}a": packed_a,
            f"{name}{ADAPTER_PART}b": packed_b,
            f"{name}{ADAPTER_PART}blocks": np.array([block.fields for block in blocks], np.int32),
        }
        attributes = {
            "adapter_rank": a.shape[2],
            "adapter_a_format": a_format,
            "adapter_b_format": b_format,
        }
        return [self.index, *constants], constants, attributes


@dataclass(frozen=True, slots=True)
class _Block:
    """Ranks and columns of B outside which it is zero; the columns are whole panels.

    ``half``: 1 or 2 if they are in the first or second half of the outputs of a gated matrix, which
    are ``half_width`` wide.
    """

    first_rank: int
    num_ranks: int
    first_column: int
    num_columns: int
    half: int = 0
    half_width: int = 0

    @property
    def fields(self) -> tuple[int, ...]:
        """``AdapterBlock`` in native/adapters.h."""
        column = self.first_column - (self.half_width if self.half == _GATED else 0)
        panels = (column // _PANEL_WIDTH, self.num_columns // _PANEL_WIDTH)
        return (self.first_rank, self.num_ranks, *panels, self.half)

    def panels(self, b: Array, panels: Panels) -> Array:
        """The block of ``b [adapters, rank, outputs]`` as ``[adapters, ranks, panels, 16]``."""
        ranks = b[:, self.first_rank : self.first_rank + self.num_ranks]
        if not self.half:
            first = self.first_column // _PANEL_WIDTH
            return panels(ranks)[:, :, first : first + self.num_columns // _PANEL_WIDTH]
        columns = ranks[:, :, self.first_column : self.first_column + self.num_columns]
        return columns.reshape(*columns.shape[:2], -1, _PANEL_WIDTH)


def _blocks(b: Array, *, is_gated: bool) -> list[_Block]:
    """Blocks of adjacent ranks that cover all of ``b [adapters, rank, outputs]`` but zeros."""
    _, rank, num_outputs = b.shape
    half = num_outputs // 2
    has_halves = is_gated and half % _PANEL_WIDTH == 0
    whole = num_outputs + -num_outputs % _PANEL_WIDTH
    if is_gated:  # panels interleave halves, whose last ones are padded
        whole = 2 * (half + -half % (_PANEL_WIDTH // 2))
    ranges: list[tuple[int, int]] = []  # of columns, for each rank
    for columns in (b != 0).any(0):
        (found,) = columns.nonzero()
        if not len(found):  # beyond the rank of all adapters
            ranges.append(ranges[-1] if ranges else (0, _PANEL_WIDTH))
            continue
        first = int(found[0]) // _PANEL_WIDTH * _PANEL_WIDTH
        last = -(-(int(found[-1]) + 1) // _PANEL_WIDTH) * _PANEL_WIDTH
        is_in_half = has_halves and (last <= half or first >= half)
        ranges.append((first, last) if is_in_half or not is_gated else (0, whole))
    blocks: list[_Block] = []
    for index, (first, last) in enumerate(ranges):
        if index and ranges[index - 1] == (first, last):
            blocks[-1] = replace(blocks[-1], num_ranks=blocks[-1].num_ranks + 1)
            continue
        placement = 0
        if is_gated and (first, last) != (0, whole):
            placement = _GATED if first >= half else _GATES
        blocks.append(_Block(index, 1, first, last - first, placement, half))
    if len(blocks) <= _MAX_BLOCKS:
        return blocks
    return [_Block(0, rank, 0, whole)]


def _packed(matrices: Sequence[Array]) -> tuple[int, Array]:
    """Compresses matrices ``[adapters, inputs, panels, 16]`` in one format.

    Returns:
        The format, and ``[adapters, bytes]``, in which the matrices follow each other.
    """
    each = [
        np.ascontiguousarray(matrix.astype(np.float32, copy=False).swapaxes(1, 2))
        for matrix in matrices
    ]
    for weight_format in (*WITHOUT_BLOCKS, WeightFormat.FLOAT32):
        found = [
            compress(matrix.reshape(-1, *matrix.shape[2:]), (weight_format,)) for matrix in each
        ]
        if all(one == weight_format for one, _ in found):
            break
    packed = [data.reshape(len(matrix), -1) for matrix, (_, data) in zip(each, found, strict=True)]
    return int(weight_format), np.concatenate(packed, axis=1)


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
