"""Constant matrices in fewer bits, and the operators that multiply with them.

Activations are quantised row by row while the graph runs, so that a row's result does not
depend on the rows it is batched with. docs/decisions/0006-int8-by-rows.md and
0011-int4-by-blocks.md have what was measured.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

CONTRIB = "com.microsoft"
Weight = NDArray[np.float32]  # [inputs, outputs]

SMALLEST_SCALE = 1e-9
# Inputs that share a scale, by bits: 32 for 4 bits, where 128 lost three times as much.
BLOCK_SIZES = {8: 128, 4: 32}
# MatMulNBits: activations are quantised to int8, block by block.
ACCURACY_LEVEL = 4


def constant(tape: Tape, name: str, array: NDArray[np.generic]) -> ir.Value:
    """An initializer."""
    return tape.initializer(ir.tensor(array, name=name))


def roomy_scales(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """A scale for each row of ``matrix [rows, size]``, which its 127 steps to either side reach.

    CPUs with AVX2 but without VNNI add the products of elements ``2 i`` and ``2 i + 1`` with an
    unsigned byte each in 16 bits, where the sum saturates. It cannot with these scales: two
    neighbours of the same sign add up to at most 128 steps, and ``255 * 128`` has room.
    """
    even = matrix if matrix.shape[1] % 2 == 0 else np.pad(matrix, [(0, 0), (0, 1)])
    first, second = even[:, 0::2], even[:, 1::2]
    sums = np.where((first > 0) == (second > 0), np.abs(first + second), 0)
    largest = np.maximum(sums.max(1, initial=0), np.abs(matrix).max(1))
    scales: NDArray[np.float32] = np.maximum(largest, SMALLEST_SCALE) / np.float32(127)
    return scales


@dataclass(frozen=True)
class Int8Rows:
    """A matrix ``[rows, size]`` in whole steps of at most 127, with a scale for each row."""

    name: str
    integers: NDArray[np.int8]
    scales: NDArray[np.float32]  # [rows]

    @classmethod
    def of(cls, name: str, matrix: NDArray[np.float32]) -> "Int8Rows":
        """``matrix``, rounded to :func:`roomy_scales`."""
        scales = roomy_scales(matrix)
        steps = matrix / scales[:, None]
        np.clip(np.round(steps, out=steps), -127, 127, out=steps)
        return cls(name, steps.astype(np.int8), scales)

    @property
    def around_128(self) -> NDArray[np.uint8]:
        """The integers as unsigned bytes."""
        return (self.integers.view(np.uint8) ^ np.uint8(128)).astype(np.uint8, copy=False)


def gather_rows(tape: Tape, ids: ir.Value, rows: Int8Rows, stored: ir.Value) -> ir.Value:
    """The rows ``ids [...]`` of ``stored [rows, size]``, in fp32: ``[..., size]``.

    One block is a whole row: a block may be longer than what it describes.
    """
    block = max(16, 1 << (rows.integers.shape[1] - 1).bit_length())
    scales = constant(tape, f"{rows.name}.row_scales", rows.scales[:, None])
    attributes = {"bits": 8, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    return tape.op("GatherBlockQuantized", [stored, ids, scales], attributes, domain=CONTRIB)


def multiply(
    tape: Tape, x: ir.Value, name: str, matrix: ir.Value, zero: int, scales: NDArray[np.float32]
) -> ir.Value:
    """``x [..., inputs]`` times a matrix of bytes, with a scale for each row of ``x`` too.

    Standard operators. Each row of ``x`` becomes unsigned bytes around 128.

    Args:
        matrix: ``[inputs, outputs]``; its ``zero`` says whether its bytes are signed.
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
    """``x [..., inputs]`` times ``weight [inputs, outputs]`` in int8, by :func:`multiply`."""
    outputs = Int8Rows.of(name, weight.T)
    matrix = constant(tape, f"{name}.int8", np.ascontiguousarray(outputs.integers.T))
    return multiply(tape, x, name, matrix, 0, outputs.scales)


def tied_int8(tape: Tape, x: ir.Value, rows: Int8Rows, stored: ir.Value) -> ir.Value:
    """``x [..., size]`` times the transpose of a token embedding that is stored as bytes.

    ONNX Runtime transposes them once, when it loads the graph.
    """
    matrix = tape.op("Transpose", [stored], {"perm": [1, 0]})
    return multiply(tape, x, rows.name, matrix, 128, rows.scales)


def block_matmul(tape: Tape, x: ir.Value, name: str, weight: Weight, bits: int) -> ir.Value:
    """``MatMulNBits``: a scale and a zero point for each block of inputs of each output.

    4 bits have a zero point of their own; 8 bits are symmetric around 128.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    block_size = BLOCK_SIZES[bits]
    num_inputs, num_outputs = weight.shape
    num_blocks = -(-num_inputs // block_size)
    blocks = np.zeros((num_outputs, num_blocks * block_size), np.float32)
    blocks[:, :num_inputs] = weight.T
    quantized = quantize_blocks(blocks.reshape(num_outputs, num_blocks, block_size), bits)
    integers, scales, zeros = quantized
    inputs = [
        x,
        constant(tape, f"{name}.int{bits}", packed(integers, bits)),
        constant(tape, f"{name}.scales", scales),
    ]
    if zeros is not None:
        inputs.append(constant(tape, f"{name}.zeros", packed(zeros, bits)))
    attributes = {
        "K": num_inputs,
        "N": num_outputs,
        "bits": bits,
        "block_size": block_size,
        "accuracy_level": ACCURACY_LEVEL,
    }
    return tape.op("MatMulNBits", inputs, attributes, domain=CONTRIB)


Quantized = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8] | None]


def quantize_blocks(blocks: Weight, bits: int) -> Quantized:
    """``[..., block]`` to integers of that shape, and a scale and a zero for each block."""
    top = 2**bits - 1
    if bits == 8:
        scales = np.maximum(np.abs(blocks).max(-1), SMALLEST_SCALE) / 127
        integers = np.clip(np.round(blocks / scales[..., None]) + 128, 1, top)
        return integers.astype(np.uint8), scales.astype(np.float32), None
    lowest, highest = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    scales = np.maximum((highest - lowest) / top, SMALLEST_SCALE).astype(np.float32)
    zeros = np.clip(np.round(-lowest / scales), 0, top)
    integers = np.clip(np.round(blocks / scales[..., None]) + zeros[..., None], 0, top)
    return integers.astype(np.uint8), scales, zeros.astype(np.uint8)


def packed(integers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Two 4-bit numbers in a byte along the last axis, the first in the lower half."""
    if bits == 8:
        return integers
    if integers.shape[-1] % 2:
        integers = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, 1)])
    result: NDArray[np.uint8] = np.bitwise_or(integers[..., 0::2], integers[..., 1::2] * 16)
    return result
