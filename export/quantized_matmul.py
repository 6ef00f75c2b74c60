"""Quantized constant matrices, and the operators that multiply with them.

Activations are quantized dynamically, row by row, so a row's result does not depend on the other
rows of its batch. Measurements: docs/decisions/0006-int8.md and 0011-int4.md.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

CONTRIB = "com.microsoft"
Weight = NDArray[np.float32]  # [inputs, outputs]

SMALLEST_SCALE = 1e-9
# Number of inputs that share a scale, by bits. With 4 bits, blocks of 128 lost three times as much.
BLOCK_SIZES = {8: 128, 4: 32}
# Attribute of MatMulNBits: 4 quantizes activations to int8, block by block.
ACCURACY_LEVEL = 4


def constant(tape: Tape, name: str, array: NDArray[np.generic]) -> ir.Value:
    """Adds an initializer to the graph."""
    return tape.initializer(ir.tensor(array, name=name))


def saturation_free_scales(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """An int8 scale per row of ``matrix [rows, size]`` that avoids 16-bit saturation.

    CPUs with AVX2 but without VNNI (``vpmaddubsw``) multiply elements ``2 i`` and ``2 i + 1`` by
    unsigned bytes and add the two products in 16 bits, which saturates. With these scales, two
    neighbours of the same sign add up to at most 128 steps, and ``255 * 128`` does not saturate.
    """
    even = matrix if matrix.shape[1] % 2 == 0 else np.pad(matrix, [(0, 0), (0, 1)])
    first, second = even[:, 0::2], even[:, 1::2]
    sums = np.where((first > 0) == (second > 0), np.abs(first + second), 0)
    largest = np.maximum(sums.max(1, initial=0), np.abs(matrix).max(1))
    scales: NDArray[np.float32] = np.maximum(largest, SMALLEST_SCALE) / np.float32(127)
    return scales


@dataclass(frozen=True)
class Int8Rows:
    """A matrix ``[rows, size]`` as integers from -127 to 127, with a scale per row."""

    name: str
    integers: NDArray[np.int8]
    scales: NDArray[np.float32]  # [rows]

    @classmethod
    def of(cls, name: str, matrix: NDArray[np.float32]) -> "Int8Rows":
        """``matrix``, quantized with :func:`saturation_free_scales`."""
        scales = saturation_free_scales(matrix)
        steps = matrix / scales[:, None]
        np.clip(np.round(steps, out=steps), -127, 127, out=steps)
        return cls(name, steps.astype(np.int8), scales)

    @property
    def around_128(self) -> NDArray[np.uint8]:
        """The integers as unsigned bytes with the zero point 128."""
        return (self.integers.view(np.uint8) ^ np.uint8(128)).astype(np.uint8, copy=False)


def gather_rows(tape: Tape, ids: ir.Value, rows: Int8Rows, stored: ir.Value) -> ir.Value:
    """The rows ``ids [...]`` of ``stored [rows, size]``, in fp32: ``[..., size]``.

    Each row is one block: the operator allows blocks longer than a row.
    """
    block = max(16, 1 << (rows.integers.shape[1] - 1).bit_length())
    scales = constant(tape, f"{rows.name}.row_scales", rows.scales[:, None])
    attributes = {"bits": 8, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    return tape.op("GatherBlockQuantized", [stored, ids, scales], attributes, domain=CONTRIB)


def dynamic_matmul_int8(
    tape: Tape, x: ir.Value, name: str, matrix: ir.Value, zero: int, scales: NDArray[np.float32]
) -> ir.Value:
    """``x [..., inputs]`` times an 8-bit matrix, with dynamic quantization of each row of ``x``.

    Uses standard operators. Rows of ``x`` become unsigned bytes with the zero point 128.

    Args:
        matrix: ``[inputs, outputs]``
        zero: the matrix's zero point: 0 for signed bytes, 128 for unsigned ones.
        scales: ``[outputs]``
    """

    def named(label: str, value: NDArray[np.generic]) -> ir.Value:
        return constant(tape, f"{name}.{label}", value)

    middle = named("zero", np.array(128, np.uint8))
    last_axis = named("axis", np.array([-1], np.int64))
    magnitude = tape.op("ReduceMax", [tape.op("Abs", [x]), last_axis], {"keepdims": 1})
    floor = named("floor", np.array(SMALLEST_SCALE, np.float32))
    largest = tape.op("Max", [magnitude, floor])  # [..., 1]
    step = named("step", np.array(1 / 127, np.float32))
    integers = tape.op("QuantizeLinear", [tape.op("Div", [x, largest]), step, middle])
    matrix_zero = middle if zero else named("matrix_zero", np.array(0, np.int8))
    product = tape.op("MatMulInteger", [integers, matrix, middle, matrix_zero])
    product = tape.op("Cast", [product], {"to": ir.DataType.FLOAT})
    output_scales = named("scales", scales / np.float32(127))
    return tape.op("Mul", [tape.op("Mul", [product, output_scales]), largest])


def row_int8(tape: Tape, x: ir.Value, name: str, weight: Weight) -> ir.Value:
    """``x [..., inputs]`` times ``weight [inputs, outputs]`` by :func:`dynamic_matmul_int8`."""
    outputs = Int8Rows.of(name, weight.T)
    matrix = constant(tape, f"{name}.int8", np.ascontiguousarray(outputs.integers.T))
    return dynamic_matmul_int8(tape, x, name, matrix, 0, outputs.scales)


def tied_int8(tape: Tape, x: ir.Value, rows: Int8Rows, stored: ir.Value) -> ir.Value:
    """``x [..., size]`` times the transpose of the token embedding ``stored`` as bytes.

    ONNX Runtime folds the transpose when it loads the graph.
    """
    matrix = tape.op("Transpose", [stored], {"perm": [1, 0]})
    return dynamic_matmul_int8(tape, x, rows.name, matrix, 128, rows.scales)


def matmul_nbits(tape: Tape, x: ir.Value, name: str, weight: Weight, bits: int) -> ir.Value:
    """``MatMulNBits``: each output has a scale per block of its inputs.

    With 4 bits, each block also has a zero point; 8 bits are symmetric around 128.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    block_size = BLOCK_SIZES[bits]
    num_inputs, num_outputs = weight.shape
    num_blocks = -(-num_inputs // block_size)
    blocks = np.zeros((num_outputs, num_blocks * block_size), np.float32)
    blocks[:, :num_inputs] = weight.T
    blocks = blocks.reshape(num_outputs, num_blocks, block_size)
    integers, scales, zeros = quantize_blocks(blocks, bits)
    inputs = [
        x,
        constant(tape, f"{name}.int{bits}", pack_bits(integers, bits)),
        constant(tape, f"{name}.scales", scales),
    ]
    if zeros is not None:
        inputs.append(constant(tape, f"{name}.zeros", pack_bits(zeros, bits)))
    attributes = {
        "K": num_inputs,
        "N": num_outputs,
        "bits": bits,
        "block_size": block_size,
        "accuracy_level": ACCURACY_LEVEL,
    }
    return tape.op("MatMulNBits", inputs, attributes, domain=CONTRIB)


class QuantizedBlocks(NamedTuple):
    """``integers [..., block]``; per block, a scale and optionally a zero point."""

    integers: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None


def quantize_blocks(blocks: Weight, bits: int) -> QuantizedBlocks:
    """Quantizes ``blocks [..., block]``: with 8 bits symmetric around 128, with 4 asymmetric."""
    top = 2**bits - 1
    if bits == 8:
        scales = np.maximum(np.abs(blocks).max(-1), SMALLEST_SCALE) / 127
        integers = np.clip(np.round(blocks / scales[..., None]) + 128, 1, top)
        return QuantizedBlocks(integers.astype(np.uint8), scales.astype(np.float32), None)
    lowest, highest = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    scales = np.maximum((highest - lowest) / top, SMALLEST_SCALE).astype(np.float32)
    zeros = np.clip(np.round(-lowest / scales), 0, top)
    integers = np.clip(np.round(blocks / scales[..., None]) + zeros[..., None], 0, top)
    return QuantizedBlocks(integers.astype(np.uint8), scales, zeros.astype(np.uint8))


def pack_bits(integers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """With 4 ``bits``, packs pairs along the last axis into bytes, the first in the lower half."""
    if bits == 8:
        return integers
    if integers.shape[-1] % 2:
        integers = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, 1)])
    result: NDArray[np.uint8] = np.bitwise_or(integers[..., 0::2], integers[..., 1::2] * 16)
    return result
