"""Replaces products with weights in blocks by one operator each: native/block_matmul_operator.h.

The export writes such a product (``export.block_matmul``) as nodes that round each block of 32
inputs to 8 bits, and a ``MatMulNBits``. With AVX2, the native operator rounds inputs to the same
numbers. With AVX-512, a block has one of two zero points, which makes most steps finer, and coarser
steps if most of its inputs are large. Scales and sums are rounded to 16 bits, zero points to 1/256
step, of which AVX-512 adds the fractions in 8 bits.
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
_ZERO_POINT_UNIT = 2.0**-8  # kZeroPointBits of native/block_matmul.h
_MAX_NUMBER = 31  # of number - zero point, so that x need not be much coarser
_MAX_INPUTS = 65536  # kMaxInputs of native/block_matmul.h
_LARGEST_SUM = 32 * 127  # with which sums of 8-bit weights fit: kRoundedBits


def replacements(graph: GraphIndex) -> Iterator[Replacement]:
    """Replaces each product with float16 scales and zero points that the operator can have."""
    for node in graph.nodes:
        if node.op_type != STANDARD_OPERATOR:
            continue
        x, settings = _quantized_input(graph, node), _settings(node)
        if x is None or settings is None:
            continue
        num_outputs, bits = settings
        numbers = _constant(graph, node.input[1]).reshape(num_outputs, -1, BLOCK * bits // 8)
        scales = _scales(graph, node, num_outputs)
        has_zeros = len(node.input) > 3 and bool(node.input[3])
        if scales is None or has_zeros != (bits == 4):
            continue
        zeros, max_sum = None, _LARGEST_SUM
        if has_zeros:
            zeros = _constant(graph, node.input[3]).reshape(num_outputs, -1)
            if zeros.dtype != np.float32:
                continue
            largest = _largest_number(numbers, zeros)
            if not largest <= _MAX_NUMBER:  # also NaN
                continue
            max_sum = _max_sum(largest)
        epilogue = find_epilogue(graph, node, num_outputs)
        yield epilogue.replacement(
            graph,
            OPERATOR,
            x,
            {"packed": pack(numbers, scales, zeros, epilogue)},
            weight_format=int(_FORMATS[bits]),
            max_sum=max_sum,
        )


def pack(numbers: Array, scales: Array, zeros: Array | None, epilogue: Epilogue) -> Array:
    """Packs a matrix as panels of native/block_matmul.h.

    Args:
        numbers: uint8 ``[outputs, blocks, bytes]`` as in ``MatMulNBits``.
        scales: float16 ``[outputs, blocks]``
        zeros: with 4 bits, zero points: float32 ``[outputs, blocks]``.
        epilogue: orders the outputs.

    Returns:
        uint8 ``[n]``
    """
    num_blocks = scales.shape[1]
    padding = [(0, 0), (0, num_blocks % 2)]  # to pairs of blocks
    exact = scales.astype(np.float64)
    if zeros is not None:
        exact[_are_zeros(numbers, zeros)] = 0  # so that no large scale coarsens the others
    units = np.abs(exact).max(1) / np.iinfo(np.int16).max
    halves = [np.rint(exact / np.where(units, units, 1)[:, None])]
    if zeros is None:
        numbers = numbers ^ 128  # two's complement
    else:
        numbers = _reorder_4_bits(numbers)
        halves.append(np.rint(zeros / _ZERO_POINT_UNIT))
    parts = [_pairs(np.pad(values, padding).astype(np.int16), epilogue) for values in halves]
    words = _words(np.pad(numbers, [*padding, (0, 0)]), epilogue)
    parts.append(words.reshape(*parts[0].shape[:2], -1))
    pairs = np.concatenate([part.view(np.uint8) for part in parts], -1)
    by_panel = epilogue.panels(units.astype(np.float32)).view(np.uint8)
    return np.concatenate([by_panel, pairs.reshape(len(pairs), -1)], -1).reshape(-1)


def _words(numbers: Array, epilogue: Epilogue) -> Array:
    """``[outputs, blocks, bytes]`` as ``[panels, blocks, words, 16, 4]``."""
    columns = epilogue.panels(np.moveaxis(numbers, 0, -1))  # [blocks, bytes, panels, 16]
    num_blocks, num_bytes, num_panels, width = columns.shape
    words = columns.reshape(num_blocks, num_bytes // _KR, _KR, num_panels, width)
    packed: Array = np.ascontiguousarray(words.transpose(3, 0, 1, 4, 2))
    return packed


def _pairs(values: Array, epilogue: Epilogue) -> Array:
    """``[outputs, blocks]`` as ``[panels, pairs, 16 * 2]``."""
    panels = epilogue.panels(values.T)  # [blocks, panels, 16]
    pairs = panels.reshape(-1, 2, *panels.shape[1:]).transpose(2, 0, 3, 1)
    packed: Array = np.ascontiguousarray(pairs).reshape(*pairs.shape[:2], -1)
    return packed


def _largest_number(numbers: Array, zeros: Array) -> float:
    """The largest magnitude of a 4-bit number minus its zero point."""
    nibbles = np.stack([numbers & 15, numbers >> 4])
    low, high = nibbles.min((0, -1)), nibbles.max((0, -1))
    return float(np.maximum(zeros - low, high - zeros).max())


def _are_zeros(numbers: Array, zeros: Array) -> Array:
    """Which blocks of 4 bits have no weights but zeros: ``[outputs, blocks]``."""
    whole = np.clip(np.rint(zeros), 0, 15)
    both = (whole * 17).astype(np.uint8)  # numbers of a byte
    found: Array = (whole == zeros) & (numbers == both[..., None]).all(-1)
    return found


def _max_sum(largest: float) -> int:
    """``max_sum`` of native/block_matmul.h.

    Rounding a block of 32 may add 32 halves twice, and the whole part of a zero point up to 1/2.
    What int16 leaves beyond 32,000 covers all other rounding.
    """
    return int(32_000 / (largest + 0.5)) - BLOCK


def _reorder_4_bits(numbers: Array) -> Array:
    """From two adjacent inputs in a byte to inputs ``i`` and ``i + 4`` of each eight."""
    inputs = np.stack([numbers & 15, numbers >> 4], -1).reshape(*numbers.shape[:2], -1, 2, _KR)
    packed: Array = inputs[..., 0, :] | inputs[..., 1, :] << 4
    return packed.reshape(numbers.shape)


def _settings(node: onnx.NodeProto) -> tuple[int, int] | None:
    """The numbers of outputs and of bits, if the native operator can have them."""
    given = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    bits = given.get("bits", 4)
    num_inputs = given["K"]
    if num_inputs % BLOCK or num_inputs > _MAX_INPUTS:
        return None
    if given["block_size"] != BLOCK or bits not in _FORMATS:
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


def _scales(graph: GraphIndex, node: onnx.NodeProto, num_outputs: int) -> Array | None:
    """float16 ``[outputs, blocks]``, if they are."""
    exact = _constant(graph, node.input[2]).reshape(num_outputs, -1)
    scales: Array = exact.astype(np.float16)
    return scales if np.all(scales == exact) else None


def _constant(graph: GraphIndex, name: str) -> Array:
    """A constant, which may be stored as another type."""
    if name in graph.initializers:
        return graph.array(name)
    cast = graph.producers[name]
    array = graph.array(cast.input[0])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(cast.attribute[0].i)
    return array.astype(dtype)
