"""Products in int8: one operator for the nine of ``export.quantized_matmul.dynamic_matmul_int8``.

It computes the very same numbers.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from server.runtime.contract import Array
from server.runtime.kernels.epilogue import Epilogue, epilogue
from server.runtime.kernels.graph import Graph, Replacement
from server.runtime.kernels.library import function

OPERATOR = "RowInt8MatMul"
GROUP = 4  # inputs that lie side by side: native/row_int8.h
MAX_INPUTS = 1 << 16
_MIDDLE = 128


@dataclass(frozen=True, slots=True)
class _Product:
    """The nine operators of a product, of which only ``last`` is read by others."""

    last: onnx.NodeProto
    x: str
    matrix: str
    zero: int
    is_transposed: bool
    scales: str


def products(graph: Graph) -> Iterator[Replacement]:
    """Those of ``graph`` whose sums the kernel can hold."""
    for node in graph.nodes:
        product = _product(graph, node)
        if product is None:
            continue
        integers = _integers(graph, product)
        if len(integers) > MAX_INPUTS or not leave_room(integers):
            continue
        after = epilogue(graph, product.last, integers.shape[1])
        packed = pack(integers, graph.array(product.scales), after)
        x, factors = _scaled(graph, product.x, len(integers))
        yield after.replacement(graph, OPERATOR, x, packed, factors)


def _product(graph: Graph, node: onnx.NodeProto) -> _Product | None:
    """The product whose ``MatMulInteger`` is ``node``, if it is one of ours."""
    if node.op_type != "MatMulInteger" or len(node.input) != 4:
        return None
    quantize = graph.made_for(node, 0, "QuantizeLinear")
    divide = graph.made_for(quantize, 0, "Div")
    clamp = graph.made_for(divide, 1, "Max")
    reduce = graph.made_for(clamp, 0, "ReduceMax")
    magnitude = graph.made_for(reduce, 0, "Abs")
    cast = graph.read_by(node, "Cast")
    scale = graph.read_by(cast, "Mul")
    restore = graph.read_by(scale, "Mul")
    middle, zero = graph.small(node.input[2]), graph.small(node.input[3])
    if not (quantize and divide and clamp and reduce and magnitude):
        return None
    if not (cast and scale and restore) or middle != _MIDDLE or zero is None:
        return None
    is_ours = (
        divide.input[0] == magnitude.input[0]
        and scale.input[0] == cast.output[0]
        and restore.input[0] == scale.output[0]
        and restore.input[1] == clamp.output[0]
        and scale.input[1] in graph.initializers
    )
    transpose = graph.made_for(node, 1, "Transpose")
    matrix = transpose.input[0] if transpose is not None else node.input[1]
    if not is_ours or matrix not in graph.initializers:
        return None
    return _Product(
        last=restore,
        x=divide.input[0],
        matrix=matrix,
        zero=int(zero),
        is_transposed=transpose is not None,
        scales=scale.input[1],
    )


def _scaled(graph: Graph, x: str, num_inputs: int) -> tuple[str, str]:
    """What is multiplied with constant factors to be ``x``, and they; or ``x`` and nothing."""
    node = graph.maker.get(x)
    if node is None or node.op_type != "Mul" or x in graph.outputs or len(graph.readers(x)) != 2:
        return x, ""
    factors = graph.initializers.get(node.input[1])
    if factors is None or list(factors.dims) != [num_inputs]:
        return x, ""
    return str(node.input[0]), str(node.input[1])


def _integers(graph: Graph, product: _Product) -> Array:
    """Its weights, signed: ``[inputs, outputs]``."""
    integers = graph.array(product.matrix)
    if product.is_transposed:
        integers = integers.T
    if product.zero:
        integers = (integers.astype(np.int16) - product.zero).astype(np.int8)
    return integers


def leave_room(integers: Array) -> bool:
    """Whether the sums of neighbours ``[inputs, outputs]`` with unsigned bytes fit 16 bits.

    Those of bundles from before may not: such a product is left to the standard operators.
    """
    pairs = integers[: len(integers) // 2 * 2].astype(np.int32)
    sums = pairs[0::2] + pairs[1::2]
    return bool(np.abs(sums).max(initial=0) * 255 <= np.iinfo(np.int16).max)


def pack(integers: Array, scales: Array, after: Epilogue) -> dict[str, Array]:
    """A matrix ``[inputs, outputs]`` and its scales as ``native/row_int8.h`` wants them."""
    grouped = np.pad(after.panels(integers), ((0, -len(integers) % GROUP), (0, 0), (0, 0)))
    blocks = grouped.reshape(-1, GROUP, *grouped.shape[1:]).transpose(2, 0, 3, 1)
    blocks, order = in_pairs(np.ascontiguousarray(blocks))
    return {
        "packed": blocks.reshape(-1),
        "order": order.reshape(-1),
        "scales": after.panels(scales.reshape(-1)).reshape(-1),
        "offsets": after.panels(_MIDDLE * integers.sum(0, dtype=np.int32)).reshape(-1),
    }


def in_pairs(blocks: Array) -> tuple[Array, Array]:
    """Panels with those groups side by side that can be multiplied together.

    Args:
        blocks: ``[panels, groups, 16, 4]``; is reordered, all pairs before what is left over.

    Returns:
        ``blocks``, and of each panel ``[1 + groups]``: how many groups are in pairs, and the first
        input of each group.

    Raises:
        MemoryError
    """
    num_panels, num_groups = blocks.shape[:2]
    order = np.zeros((num_panels, 1 + num_groups), np.uint16)
    if _PAIR is None:
        order[:, 1:] = GROUP * np.arange(num_groups)
    elif not _PAIR.lengthily(blocks.ctypes.data, num_panels, num_groups, order.ctypes.data):
        raise MemoryError(f"no memory to order {num_groups} groups")
    return blocks, order


_PAIR = function(
    "triune_pair_groups",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
)
