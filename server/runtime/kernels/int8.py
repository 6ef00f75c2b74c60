"""Replaces each int8 product by one native operator: native/int8_matmul_operator.h.

The export writes such a product, with dynamic quantization of its rows, as nine standard operators
(``export.quantized_matmul.dynamic_matmul_int8``). The native operator computes the same numbers,
bit for bit.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from server.runtime.kernels.candidates import with_candidates
from server.runtime.kernels.epilogue import Epilogue, find_epilogue
from server.runtime.kernels.library import load_function
from server.runtime.kernels.rounded_inputs import STEP, takes_largest
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.rewrites import Rewrite

OPERATOR = "DynamicInt8MatMul"
STANDARD_OPERATOR = "MatMulInteger"
KR = 4  # how many inputs of an output are adjacent in packed weights: native/int8_matmul.h
MAX_INPUTS = 1 << 16
_ZERO_POINT = 128  # the zero point of quantized rows


@dataclass(frozen=True, slots=True)
class _Product:
    """The nine operators of a product; only the output of ``last`` is used elsewhere."""

    last: onnx.NodeProto
    x: str
    matrix: str
    zero_point: int  # that of the matrix
    is_transposed: bool
    scales: str


def fuse_int8_matmul(graph: GraphIndex, *, takes_candidates: bool = False) -> Iterator[Rewrite]:
    """Replaces each int8 product whose sums fit the kernel's 16-bit lanes.

    ``takes_candidates``: see :func:`server.runtime.kernels.rewrite.rewrite`.
    """
    for node in graph.nodes:
        product = _match(graph, node)
        if product is None:
            continue
        weights = _signed_weights(graph, product)
        if weights is None or len(weights) > MAX_INPUTS or not fit_16_bits(weights):
            continue
        if list(graph.initializers[product.scales].dims) != [weights.shape[1]]:
            continue
        x, factors = _input_factors(graph, product.x, len(weights))
        epilogue = find_epilogue(graph, product.last, x, weights.shape[1])
        matrix = pack(weights, graph.array(product.scales), epilogue)
        rewrite = epilogue.rewrite(graph, OPERATOR, x, matrix, factors, num_inputs=len(weights))
        yield with_candidates(rewrite, weights) if takes_candidates else rewrite


def _match(graph: GraphIndex, node: onnx.NodeProto) -> _Product | None:
    """Returns the product around a ``MatMulInteger``; None unless it is as the export writes it."""
    if node.op_type != STANDARD_OPERATOR or len(node.input) != 4:
        return None
    quantize = graph.producer(node, 0, "QuantizeLinear")
    divide = graph.producer(quantize, 0, "Div")
    clamp = graph.producer(divide, 1, "Max")
    reduce = graph.producer(clamp, 0, "ReduceMax")
    magnitude = graph.producer(reduce, 0, "Abs")
    cast = graph.only_consumer(node, "Cast")
    scale = graph.only_consumer(cast, "Mul")
    restore = graph.only_consumer(scale, "Mul")
    row_zero, zero = graph.scalar(node.input[2]), graph.scalar(node.input[3])
    if not (quantize and divide and clamp and reduce and magnitude):
        return None
    if not (cast and scale and restore) or row_zero != _ZERO_POINT or zero is None:
        return None
    matches = (
        [graph.scalar(name) for name in quantize.input[1:]] == [STEP, _ZERO_POINT]
        and takes_largest(graph, reduce, clamp)
        and divide.input[0] == magnitude.input[0]
        and scale.input[0] == cast.output[0]
        and restore.input[0] == scale.output[0]
        and restore.input[1] == clamp.output[0]
        and scale.input[1] in graph.initializers
    )
    transpose = graph.producer(node, 1, "Transpose")
    matrix = transpose.input[0] if transpose is not None else node.input[1]
    if not matches or matrix not in graph.initializers:
        return None
    return _Product(
        last=restore,
        x=divide.input[0],
        matrix=matrix,
        zero_point=int(zero),
        is_transposed=transpose is not None,
        scales=scale.input[1],
    )


def _input_factors(graph: GraphIndex, x: str, num_inputs: int) -> tuple[str, str]:
    """If ``x`` is a value times constant factors, returns both; else ``x`` and "".

    The native operator multiplies by the factors while it quantizes.
    """
    node = graph.producers.get(x)
    if node is None or node.op_type != "Mul" or x in graph.outputs or len(graph.consumers(x)) != 2:
        return x, ""
    factors = graph.initializers.get(node.input[1])
    if factors is None or list(factors.dims) != [num_inputs]:
        return x, ""
    return str(node.input[0]), str(node.input[1])


def _signed_weights(graph: GraphIndex, product: _Product) -> Array | None:
    """Returns the weights ``[inputs, outputs]`` as int8 with zero point 0; None if not possible."""
    weights = graph.array(product.matrix)
    if weights.ndim != 2:
        return None
    if product.is_transposed:
        weights = weights.T
    if weights.dtype == np.int8 and not product.zero_point:
        return weights
    lowest, highest = (int(end) - product.zero_point for end in (weights.min(), weights.max()))
    if lowest < -128 or highest > 127:
        return None
    return (weights.astype(np.int16) - product.zero_point).astype(np.int8)


def fit_16_bits(weights: Array) -> bool:
    """Whether the products of inputs 2i and 2i + 1 with unsigned bytes have a sum of 16 bits.

    Weights ``[inputs, outputs]`` of old bundles may not fit: ONNX Runtime computes their products.
    """
    pairs = weights[: len(weights) // 2 * 2].astype(np.int32)
    sums = pairs[0::2] + pairs[1::2]
    return bool(np.abs(sums).max(initial=0) * 255 <= np.iinfo(np.int16).max)


def pack(weights: Array, scales: Array, epilogue: Epilogue) -> dict[str, Array]:
    """Packs weights ``[inputs, outputs]`` and their scales: ``PackedMatrix`` in int8_matmul.h."""
    padded = np.pad(epilogue.panels(weights), ((0, -len(weights) % KR), (0, 0), (0, 0)))
    groups = padded.reshape(-1, KR, *padded.shape[1:]).transpose(2, 0, 3, 1)
    groups, group_order = pair_groups(np.ascontiguousarray(groups))
    zero_point_sums = _ZERO_POINT * weights.sum(0, dtype=np.int32)
    return {
        "packed": groups.reshape(-1),
        "group_order": group_order.reshape(-1),
        "scales": epilogue.panels(scales.reshape(-1)).reshape(-1),
        "zero_point_sums": epilogue.panels(zero_point_sums).reshape(-1),
    }


def pair_groups(groups: Array) -> tuple[Array, Array]:
    """Reorders each panel so that groups whose products fit the same lanes are adjacent.

    Args:
        groups: ``[panels, groups, 16, 4]``, reordered in place, pairs first.

    Returns:
        ``groups``, and for each panel ``[1 + groups]``: the number of groups in pairs, then the
        first input of each group.

    Raises:
        MemoryError: the native function cannot allocate memory.
    """
    num_panels, num_groups = groups.shape[:2]
    order = np.zeros((num_panels, 1 + num_groups), np.uint16)
    if _PAIR_GROUPS is None:
        order[:, 1:] = KR * np.arange(num_groups)
        return groups, order
    arguments = (groups.ctypes.data, num_panels, num_groups, order.ctypes.data)
    if not _PAIR_GROUPS.releasing_gil(*arguments):
        raise MemoryError(f"out of memory while pairing {num_groups} groups")
    return groups, order


_PAIR_GROUPS = load_function(
    "triune_pair_groups",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
)
