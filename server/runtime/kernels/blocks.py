"""Replaces products with block-quantized weights: native/block_matmul_operator.h.

The export writes such a product (``export.block_matmul``) as nodes that round each block of 32
inputs to 8 bits, and a ``MatMulNBits``. With AVX2 or NEON, the native operator rounds inputs to the
same numbers. With AVX-512, a block of inputs has one of two zero points, which makes most steps
finer; steps are coarser if most inputs of the block are large. Scales and sums are rounded to 16
bits, zero points to 1/256 step; AVX-512 adds the fractions of zero points in 8 bits.
"""

from collections.abc import Iterator

import numpy as np
import onnx

from server.runtime.kernels.block_packing import (
    BLOCK,
    MAX_INPUTS,
    BlockMatrix,
    largest_number,
    pack,
)
from server.runtime.kernels.epilogue import find_epilogue
from server.runtime.kernels.rounded_inputs import STEP, STEPS, takes_largest
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import attributes_of
from server.runtime.rewriting.rewrites import Rewrite

OPERATOR = "DynamicBlockMatMul"
STANDARD_OPERATOR = "MatMulNBits"
_MAX_NUMBER = 31  # the largest |number - zero point|: larger ones would make x much coarser
_LARGEST_SUM = 32 * 127  # the ``max_sum`` with which sums of 8-bit weights fit: kRoundedBits


def fuse_block_matmul(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces each product whose scales and zero points the operator supports."""
    for node in graph.nodes:
        if node.op_type != STANDARD_OPERATOR:
            continue
        x, settings = _quantized_input(graph, node), _settings(node)
        if x is None or settings is None:
            continue
        num_outputs, bits = settings
        matrix = _matrix(graph, node, num_outputs, bits)
        if matrix is None:
            continue
        max_sum = _LARGEST_SUM
        if matrix.zeros is not None:
            largest = largest_number(matrix)
            if not largest <= _MAX_NUMBER:  # also NaN
                continue
            max_sum = _max_sum(largest)
        epilogue = find_epilogue(graph, node, x, num_outputs)
        packed = pack(matrix, epilogue)
        yield epilogue.rewrite(
            graph,
            OPERATOR,
            x,
            {"packed": packed.panels},
            num_inputs=matrix.numbers.shape[1] * BLOCK,
            weight_format=int(packed.weight_format),
            max_sum=max_sum,
        )


def _matrix(
    graph: GraphIndex, node: onnx.NodeProto, num_outputs: int, bits: int
) -> BlockMatrix | None:
    """Returns the matrix of a product.

    None without float16 scales or, at 4 bits, float zeros; and if there are not as many as blocks.
    """
    has_zeros = len(node.input) > 3 and bool(node.input[3])
    if has_zeros != (bits == 4) or not all(map(graph.is_constant, filter(None, node.input[1:]))):
        return None
    if any(node.input[4:]):  # an order of the inputs, or a bias
        return None
    num_blocks, block_bytes = num_outputs * attributes_of(node)["K"] // BLOCK, BLOCK * bits // 8
    numbers, *others = (graph.constant(name) for name in node.input[1:4] if name)
    if numbers.size != num_blocks * block_bytes or {x.size for x in others} != {num_blocks}:
        return None
    numbers = numbers.reshape(num_outputs, -1, block_bytes)
    scales, *zeros = (x.reshape(num_outputs, -1) for x in others)
    is_float = not zeros or zeros[0].dtype == np.float32
    return BlockMatrix.of(numbers, scales, zeros[0] if zeros else None) if is_float else None


def _max_sum(largest: float) -> int:
    """Computes ``max_sum`` of native/block_matmul.h.

    Rounding a block of 32 may add 32 halves twice, and rounding a zero point to a whole number up
    to 1/2. The range of int16 beyond 32,000 covers all other rounding.
    """
    return int(32_000 / (largest + 0.5)) - BLOCK


def _settings(node: onnx.NodeProto) -> tuple[int, int] | None:
    """Returns the number of outputs and of bits; None if the native operator does not take them."""
    attributes = attributes_of(node)
    bits = attributes.get("bits", 4)
    num_inputs = attributes["K"]
    if num_inputs % BLOCK or num_inputs > MAX_INPUTS:
        return None
    if attributes["block_size"] != BLOCK or bits not in (4, 8):
        return None
    return attributes["N"], bits


def _quantized_input(graph: GraphIndex, product: onnx.NodeProto) -> str | None:
    """Returns the value that the nodes of ``export.block_matmul`` quantize; None without them."""
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
    if not (blocks and inverse and largest and reduce and magnitude and scale):
        return None
    matches = (
        (graph.scalar(inverse.input[0]), graph.scalar(scale.input[1])) == (STEPS, STEP)
        and takes_largest(graph, reduce, largest)
        and magnitude.input[0] == blocks.output[0]
        and scale.input[0] == largest.output[0]
    )
    shape = graph.inline_array(blocks.input[1])
    if not matches or shape is None or shape[-1] != BLOCK:
        return None
    return str(blocks.input[0])
