"""Mixtures of experts in fewer bits: ``MoE`` becomes ``QMoE``.

docs/decisions/0016-experts-in-few-bits.md has what was measured.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.quantized_matmul import BLOCK_SIZES, CONTRIB, constant, packed, quantize_blocks
from export.recipes import MatrixForm

Experts = NDArray[np.float32]  # [experts, outputs, inputs]

BITS = {MatrixForm.BLOCK_INT8: 8, MatrixForm.BLOCK_INT4: 4}
SMALLEST_BLOCK = 16  # that the operator takes


def is_mixture(node: ir.Node) -> bool:
    """Whether ``node`` is a mixture of experts in floats."""
    return node.domain == CONTRIB and node.op_type == "MoE"


def quantized_mixture(tape: Tape, node: ir.Node, form: MatrixForm) -> ir.Value:
    """What ``node``, a ``MoE``, gives, with experts in ``form``.

    A scale for each block of an expert's inputs, and a zero point where they have 4 bits; where
    no size of blocks fits, 8 bits with a scale for each output.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    x, scores, first, first_bias, second, second_bias = _six(node.inputs)
    weights = [_weights(first), _weights(second)]
    block = _block_size(BITS[form], [weight.shape[2] for weight in weights])
    bits = BITS[form] if block else 8
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
        stored = packed(integers.reshape(weight.shape), bits)
        inputs += [
            constant(tape, f"{name}.int{bits}", stored),
            constant(tape, f"{name}.scales", scales if block else scales[..., 0]),
            bias,
        ]
        zeros.append(None if zero is None else constant(tape, f"{name}.zeros", packed(zero, bits)))
    if zeros[0] is not None:
        inputs += [None, None, None, *zeros]  # behind a third matrix, which there is not
    return tape.op("QMoE", inputs, attributes, domain=CONTRIB)


def _six(inputs: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    return [*inputs, *[None] * (6 - len(inputs))]


def _weights(value: ir.Value | None) -> Experts:
    if value is None or value.const_value is None:
        raise ValueError("experts that are not constants")
    array: Experts = value.const_value.numpy()
    return array


def _block_size(bits: int, sizes: Sequence[int]) -> int | None:
    """The largest power of two that divides all ``sizes`` and is not above that for ``bits``."""
    block = BLOCK_SIZES[bits]
    while block >= SMALLEST_BLOCK:
        if not any(size % block for size in sizes):
            return block
        block //= 2
    return None
