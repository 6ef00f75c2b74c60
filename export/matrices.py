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


@dataclass(frozen=True)
class Int8Rows:
    """A matrix ``[rows, size]`` as unsigned bytes around 128, with a scale for each row."""

    name: str
    integers: NDArray[np.uint8]
    scales: NDArray[np.float32]  # [rows]

    @classmethod
    def of(cls, name: str, matrix: NDArray[np.float32]) -> "Int8Rows":
        """``matrix``, rounded to 127 steps to either side of 0."""
        scales = np.maximum(np.abs(matrix).max(1), SMALLEST_SCALE) / 127
        steps = matrix / scales[:, None]
        integers = np.clip(np.round(steps, out=steps), -127, 127, out=steps)
        integers += 128
        return cls(name, integers.astype(np.uint8), scales.astype(np.float32))


def gather_rows(tape: Tape, ids: ir.Value, rows: Int8Rows, stored: ir.Value) -> ir.Value:
    """The rows ``ids [...]`` of ``stored [rows, size]``, in fp32: ``[..., size]``.

    One block is a whole row: a block may be longer than what it describes.
    """
    block = max(16, 1 << (rows.integers.shape[1] - 1).bit_length())
    scales = constant(tape, f"{rows.name}.row_scales", rows.scales[:, None])
    attributes = {"bits": 8, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    return tape.op("GatherBlockQuantized", [stored, ids, scales], attributes, domain=CONTRIB)


def matmul_rows(
    tape: Tape, x: ir.Value, rows: Int8Rows, stored: ir.Value | None = None
) -> ir.Value:
    """``x [..., inputs]`` times a matrix with a scale for each output and each row of ``x``.

    ``rows`` are the outputs. Standard operators. Both sides are unsigned bytes around 128: with
    signed weights, CPUs that lack VNNI saturate the sum of two products (twice the error was
    measured), and those that have it run the two forms alike.

    Args:
        stored: the bytes ``[outputs, inputs]``, if the graph has them already; ONNX Runtime
            transposes them once, when it loads the graph.
    """

    def named(label: str, value: NDArray[np.generic]) -> ir.Value:
        return constant(tape, f"{rows.name}.{label}", value)

    zero = named("zero", np.array(128, np.uint8))
    last_axis = named("axis", np.array([-1], np.int64))
    magnitude = tape.op("ReduceMax", [tape.op("Abs", [x]), last_axis], {"keepdims": 1})
    floor = named("floor", np.array(SMALLEST_SCALE, np.float32))
    largest = tape.op("Max", [magnitude, floor])  # [..., 1]
    step = named("step", np.array(1 / 127, np.float32))
    integers = tape.op("QuantizeLinear", [tape.op("Div", [x, largest]), step, zero])
    if stored is None:
        matrix = named("int8", np.ascontiguousarray(rows.integers.T))
    else:
        matrix = tape.op("Transpose", [stored], {"perm": [1, 0]})
    product = tape.op("MatMulInteger", [integers, matrix, zero, zero])
    product = tape.op("Cast", [product], {"to": ir.DataType.FLOAT})
    output_scales = named("scales", rows.scales / np.float32(127))
    return tape.op("Mul", [tape.op("Mul", [product, output_scales]), largest])


def row_int8(tape: Tape, x: ir.Value, name: str, weight: Weight) -> ir.Value:
    """``x [..., inputs]`` times ``weight [inputs, outputs]`` by :func:`matmul_rows`."""
    return matmul_rows(tape, x, Int8Rows.of(name, weight.T))


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
