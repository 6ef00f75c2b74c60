"""Replaces products with weights in blocks by one operator each: native/block_matmul_operator.h.

The export writes such a product (``export.block_matmul``) as nodes that round each block of 32
inputs to 8 bits, and a ``MatMulNBits``. The native operator quantizes to the same numbers; results
differ by the rounding of sums, and of 4-bit zero points to 1/256 step.
"""

from collections.abc import Iterator

import numpy as np
import onnx

from server.runtime.contract import Array
from server.runtime.kernels.epilogue import Epilogue, find_epilogue
from server.runtime.kernels.graph import GraphIndex, Replacement
from server.runtime.kernels.weights import WeightFormat

OPERATOR = "DynamicBlockMatMul"
STANDARD_OPERATOR = "MatMulNBits"
BLOCK = 32  # inputs that share a scale: native/weight_format.h
_KR = 4  # adjacent inputs of an output in packed weights
_FORMATS = {8: WeightFormat.INT8_BLOCKS, 4: WeightFormat.INT4_BLOCKS}
_MAX_ZERO_POINT = 112
_ZERO_POINT_UNIT = 2.0**-8  # kZeroPointBits of native/block_matmul.h


def replacements(graph: GraphIndex) -> Iterator[Replacement]:
    """Replaces each product with float16 scales and zero points that the operator can have."""
    for node in graph.nodes:
        if node.op_type != STANDARD_OPERATOR:
            continue
        x, settings = _quantized_input(graph, node), _settings(node)
        if x is None or settings is None:
            continue
        num_outputs, bits = settings
        parameters = _parameters(graph, node, num_outputs, bits)
        if parameters is None:
            continue
        numbers = _constant(graph, node.input[1]).reshape(num_outputs, -1, BLOCK * bits // 8)
        epilogue = find_epilogue(graph, node, num_outputs)
        packed = pack(numbers, parameters, bits, epilogue)
        yield epilogue.replacement(
            graph, OPERATOR, x, {"packed": packed}, weight_format=int(_FORMATS[bits])
        )


def pack(numbers: Array, parameters: Array, bits: int, epilogue: Epilogue) -> Array:
    """Packs a matrix as panels of native/block_matmul.h.

    Args:
        numbers: ``[outputs, blocks, bytes]`` as in ``MatMulNBits``.
        parameters: uint16 ``[1 or 2, outputs, blocks]``: the bits of float16 scales; with 4 bits
            also those of int16 zero points.
        bits: 8 or 4.
        epilogue: orders the outputs.

    Returns:
        uint8 ``[n]``
    """
    if bits == 4:
        numbers = _reorder_4_bits(numbers)
    columns = epilogue.panels(np.moveaxis(numbers, 0, -1))  # [blocks, bytes, panels, 16]
    num_blocks, num_bytes, num_panels, width = columns.shape
    words = columns.reshape(num_blocks, num_bytes // _KR, _KR, num_panels, width)
    words = words.transpose(3, 0, 1, 4, 2).reshape(num_panels, num_blocks, -1)
    by_panel = epilogue.panels(parameters.swapaxes(-2, -1)).transpose(2, 1, 0, 3)
    by_panel = np.ascontiguousarray(by_panel).reshape(num_panels, num_blocks, -1)
    return np.concatenate([by_panel.view(np.uint8), words], -1).reshape(-1)


def _reorder_4_bits(numbers: Array) -> Array:
    """From two adjacent inputs in a byte to inputs ``i`` and ``i + 4`` of each eight."""
    inputs = np.stack([numbers & 15, numbers >> 4], -1).reshape(*numbers.shape[:2], -1, 2, _KR)
    packed: Array = inputs[..., 0, :] | inputs[..., 1, :] << 4
    return packed.reshape(numbers.shape)


def _settings(node: onnx.NodeProto) -> tuple[int, int] | None:
    """The numbers of outputs and of bits, if the native operator can have them."""
    given = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    bits = given.get("bits", 4)
    if given["block_size"] != BLOCK or given["K"] % BLOCK or bits not in _FORMATS:
        return None
    return given["N"], bits


def _quantized_input(graph: GraphIndex, product: onnx.NodeProto) -> str | None:
    """The value whose blocks are rounded and multiplied, as ``export.block_matmul`` writes."""
    restore = graph.producer(product, 0, "Reshape")
    rounded = graph.producer(restore, 0, "Mul")
    numbers = graph.producer(rounded, 0, "Round")
    scaled = graph.producer(numbers, 0, "Mul")
    blocks = graph.producer(scaled, 0, "Reshape")
    inverse = graph.producer(scaled, 1, "Div")
    largest = graph.producer(inverse, 1, "Max")
    reduce = graph.producer(largest, 0, "ReduceMax")
    magnitude = graph.producer(reduce, 0, "Abs")
    scale = graph.producer(rounded, 1, "Mul")
    if blocks is None or largest is None or magnitude is None or scale is None:
        return None
    matches = magnitude.input[0] == blocks.output[0] and scale.input[0] == largest.output[0]
    shape = graph.inline_array(blocks.input[1])
    if not matches or shape is None or shape[-1] != BLOCK:
        return None
    return str(blocks.input[0])


def _parameters(
    graph: GraphIndex, node: onnx.NodeProto, num_outputs: int, bits: int
) -> Array | None:
    """The parameters for :func:`pack`, if the native operator can have them."""
    exact = _constant(graph, node.input[2]).reshape(num_outputs, -1)
    scales = exact.astype(np.float16)
    if np.any(scales != exact):
        return None
    has_zeros = len(node.input) > 3 and bool(node.input[3])
    if has_zeros != (bits == 4):
        return None
    if not has_zeros:
        return scales[None].view(np.uint16)
    zeros = _constant(graph, node.input[3])
    if zeros.dtype != np.float32 or not np.all(np.abs(zeros) <= _MAX_ZERO_POINT):  # also NaN
        return None
    units = np.rint(zeros.reshape(num_outputs, -1) / _ZERO_POINT_UNIT).astype(np.int16)
    return np.stack([scales.view(np.uint16), units.view(np.uint16)])


def _constant(graph: GraphIndex, name: str) -> Array:
    """A constant, which may be stored as another type."""
    if name in graph.initializers:
        return graph.array(name)
    cast = graph.producers[name]
    array = graph.array(cast.input[0])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(cast.attribute[0].i)
    return array.astype(dtype)
