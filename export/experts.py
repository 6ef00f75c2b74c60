"""Quantizes mixtures of experts: ``MoE`` becomes ``QMoE``.

Measurements: docs/decisions/0020-mixtures-of-experts.md.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.precision_schemes import WeightFormat
from export.quantized_matmul import BLOCK_SIZES, CONTRIB, constant, pack_bits, quantize_blocks

Experts = NDArray[np.float32]  # [experts, outputs, inputs]

BITS = {WeightFormat.BLOCK_INT8: 8, WeightFormat.BLOCK_INT4: 4}
MIN_BLOCK_SIZE = 16  # the operator's limit


def is_mixture(node: ir.Node) -> bool:
    """Whether ``node`` is a mixture of experts with float weights."""
    return node.domain == CONTRIB and node.op_type == "MoE"


def quantized_mixture(tape: Tape, node: ir.Node, weight_format: WeightFormat) -> ir.Value:
    """The output of ``node``, a ``MoE``, with experts in ``weight_format``.

    Each block of an expert's inputs has a scale and, with 4 bits, a zero point. If no block size
    divides the inputs, weights have 8 bits and one scale per output.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    x, scores, first, first_bias, second, second_bias = _with_optional(node.inputs)
    weights = [_weights(first), _weights(second)]
    block = _block_size(BITS[weight_format], [weight.shape[2] for weight in weights])
    bits = BITS[weight_format] if block else 8
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes["expert_weight_bits"] = bits
    if block:
        attributes["block_size"] = block
    inputs: list[ir.Value | None] = [x, scores]
    zeros: list[ir.Value | None] = []
    pairs = ((first, first_bias), (second, second_bias))
    for weight, (value, bias) in zip(weights, pairs, strict=True):
        name = value.name if value is not None and value.name else "experts"
        blocks = weight.reshape(*weight.shape[:2], -1, block or weight.shape[2])
        integers, scales, zero = quantize_blocks(blocks, bits)
        stored = pack_bits(integers.reshape(weight.shape), bits)
        inputs += [
            constant(tape, f"{name}.int{bits}", stored),
            constant(tape, f"{name}.scales", scales if block else scales[..., 0]),
            bias,
        ]
        zeros.append(
            None if zero is None else constant(tape, f"{name}.zeros", pack_bits(zero, bits))
        )
    if zeros[0] is not None:
        inputs += [None, None, None, *zeros]  # after the optional third matrix, which is absent
    return tape.op("QMoE", inputs, attributes, domain=CONTRIB)


def _with_optional(inputs: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    """All six inputs of ``MoE``; trailing ones are optional."""
    return [*inputs, *[None] * (6 - len(inputs))]


def _weights(value: ir.Value | None) -> Experts:
    if value is None or value.const_value is None:
        raise ValueError("the weights of experts must be constants")
    array: Experts = value.const_value.numpy()
    return array


def _block_size(bits: int, sizes: Sequence[int]) -> int | None:
    """The largest power of two up to ``BLOCK_SIZES[bits]`` that divides all ``sizes``."""
    block = BLOCK_SIZES[bits]
    while block >= MIN_BLOCK_SIZE:
        if not any(size % block for size in sizes):
            return block
        block //= 2
    return None
