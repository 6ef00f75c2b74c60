"""Matrices in blocks of 32 inputs, and products whose inputs are rounded to 8 bits in such blocks.

Each block of a matrix has a float16 scale and, with 4 bits, a float16 offset, as in GGUF's Q8_0 and
Q4_1: a matrix that came in such blocks is kept exactly. An outlier among the inputs coarsens its
block only. Measurements: docs/decisions/0006-int8.md and 0011-int4.md.
"""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.quantized_matmul import CONTRIB, SMALLEST_SCALE, Weight, constant, pack_bits

BLOCK = 32
_NUM_FITS = 6  # more gain less than 1 % of the error
_STEPS = 127  # of the largest magnitude of a block of inputs
Halves = NDArray[np.float16]


class Blocks(NamedTuple):
    """A matrix ``[outputs, blocks, 32]``: weight = number * scale + offset.

    Numbers of 8 bits are stored + 128 and have no offsets.
    """

    numbers: NDArray[np.uint8]
    scales: Halves  # [outputs, blocks]
    offsets: Halves | None = None

    @property
    def bits(self) -> int:
        return 8 if self.offsets is None else 4

    def restored(self) -> NDArray[np.float32]:
        """The weights that the numbers stand for, ``[outputs, blocks, 32]``."""
        scales = self.scales.astype(np.float32)[..., None]
        if self.offsets is None:
            return (self.numbers.astype(np.float32) - 128) * scales
        # In float64 the product is exact, so that the sum is rounded once.
        exact = self.numbers.astype(np.float64) * scales + self.offsets[..., None]
        return exact.astype(np.float32)


def can_have_blocks(num_inputs: int) -> bool:
    """Whether a matrix with this many inputs divides into blocks."""
    return num_inputs % BLOCK == 0


def quantize(weight: Weight, bits: int) -> Blocks:
    """Rounds ``weight [inputs, outputs]`` to blocks of ``bits`` bits, 8 or 4.

    Weights that 4-bit blocks hold exactly get 4 bits even if 8 are asked for: more bits would add
    bytes, not fidelity.
    """
    matrix = np.ascontiguousarray(weight.T).reshape(weight.shape[1], -1, BLOCK)
    blocks, is_exact = _exact_4_bits(matrix)
    if is_exact.all():
        return blocks
    return rounded_to_8_bits(matrix) if bits == 8 else _fitted(matrix, blocks)


def rounded_to_8_bits(matrix: Weight) -> Blocks:
    """``matrix [rows, blocks, 32]`` as in GGUF's Q8_0, which it therefore keeps exactly."""
    scales = (np.abs(matrix).max(-1) / _STEPS).astype(np.float16)
    numbers = np.clip(_steps(matrix, scales), -_STEPS, _STEPS) + 128
    return Blocks(numbers.astype(np.uint8), scales)


def _exact_4_bits(matrix: Weight) -> tuple[Blocks, NDArray[np.bool_]]:
    """Blocks as in GGUF's Q4_1 or Q4_0, and which of them ``[rows, blocks]`` are exact."""
    lowest, highest = matrix.min(-1), matrix.max(-1)
    extreme = np.where(highest > -lowest, highest, lowest)
    best = _between(matrix, lowest, highest)
    is_exact = (best.restored() == matrix).all(-1)
    if is_exact.all():
        return best, is_exact
    symmetric = _with_scales(matrix, (extreme / -8).astype(np.float16), extreme.astype(np.float16))
    is_symmetric = (symmetric.restored() == matrix).all(-1) & ~is_exact
    return _choose(is_symmetric, symmetric, best), is_exact | is_symmetric


def _fitted(matrix: Weight, best: Blocks) -> Blocks:
    """The 4-bit blocks ``best``, with a smaller squared error where one is found.

    Least squares fits scale and offset to the numbers, and the weights are rounded anew, in turn
    (as in Lloyd 1982).
    """
    least = _squared_error(best, matrix)
    fitted = best
    mean = matrix.mean(-1)
    for _ in range(_NUM_FITS):
        numbers = fitted.numbers.astype(np.float32)
        centred = numbers - numbers.mean(-1, keepdims=True)
        variance = np.maximum((centred**2).sum(-1), SMALLEST_SCALE)
        scales = (centred * matrix).sum(-1) / variance
        offsets = mean - scales * numbers.mean(-1)
        fitted = _with_scales(matrix, scales.astype(np.float16), offsets.astype(np.float16))
        error = _squared_error(fitted, matrix)
        best, least = _choose(error < least, fitted, best), np.minimum(error, least)
    return best


def _squared_error(blocks: Blocks, matrix: Weight) -> Weight:
    error: Weight = ((blocks.restored() - matrix) ** 2).sum(-1)
    return error


def _choose(condition: NDArray[np.bool_], one: Blocks, other: Blocks) -> Blocks:
    """``one`` where ``condition [rows, blocks]`` holds; both have 4 bits."""
    return Blocks(
        np.where(condition[..., None], one.numbers, other.numbers),
        np.where(condition, one.scales, other.scales),
        np.where(condition, one.offsets, other.offsets),  # type: ignore[arg-type]
    )


def _between(matrix: Weight, lowest: Weight, highest: Weight) -> Blocks:
    """Numbers from 0, ``lowest``, to 15, ``highest``."""
    scales = ((highest - lowest) / np.float32(15)).astype(np.float16)
    return _with_scales(matrix, scales, lowest.astype(np.float16))


def _with_scales(matrix: Weight, scales: Halves, offsets: Halves) -> Blocks:
    numbers = np.clip(_steps(matrix - offsets.astype(np.float32)[..., None], scales), 0, 15)
    return Blocks(numbers.astype(np.uint8), scales, offsets)


def _steps(matrix: Weight, scales: Halves) -> Weight:
    """How many scales each value is, rounded; 0 where the scale is 0."""
    divisors = np.where(scales == 0, np.inf, scales.astype(np.float32))[..., None]
    steps: Weight = np.round(matrix / divisors)
    return steps


def block_matmul(tape: Tape, x: ir.Value, name: str, weight: Weight, bits: int) -> ir.Value:
    """``x [..., inputs]``, rounded in blocks, times ``weight [inputs, outputs]``."""
    blocks = quantize(weight, bits)
    numbers = constant(tape, f"{name}.int{blocks.bits}", pack_bits(blocks.numbers, blocks.bits))
    return multiply(tape, x, name, numbers, blocks)


def multiply(tape: Tape, x: ir.Value, name: str, numbers: ir.Value, blocks: Blocks) -> ir.Value:
    """``x [..., inputs]``, rounded in blocks, times the matrix whose numbers are stored already.

    ``MatMulNBits`` with fp32 inputs: rounding stands in the graph, so that every ONNX Runtime
    computes the same. Its zero points are float, since an offset is no multiple of the scale.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    num_outputs, num_blocks, _ = blocks.numbers.shape
    scales = blocks.scales
    if blocks.offsets is not None:
        # A block of one value may have the scale 0: its offset becomes a multiple of another scale.
        magnitudes = np.where(blocks.offsets == 0, np.float16(1), np.abs(blocks.offsets))
        scales = np.where(scales == 0, magnitudes, scales)
    inputs = [rounded_inputs(tape, x, name), numbers, halves(tape, f"{name}.scales", scales)]
    if blocks.offsets is not None:
        zeros = -blocks.offsets.astype(np.float32) / scales.astype(np.float32)
        inputs.append(constant(tape, f"{name}.zeros", zeros.reshape(-1)))
    attributes = {
        "K": num_blocks * BLOCK,
        "N": num_outputs,
        "bits": blocks.bits,
        "block_size": BLOCK,
    }
    return tape.op("MatMulNBits", inputs, attributes, domain=CONTRIB)


def gather_rows(tape: Tape, ids: ir.Value, name: str, stored: ir.Value, rows: Blocks) -> ir.Value:
    """The rows ``ids [...]`` of the 8-bit matrix ``rows``, in fp32: ``[..., size]``."""
    if ids.shape is None:
        raise ValueError(f"the shape of the ids for {name} is unknown")
    num_rows, num_blocks, _ = rows.numbers.shape
    shape = constant(tape, f"{name}.scales_shape", np.array([num_rows, num_blocks, 1], np.int64))
    scales = tape.op("Reshape", [halves(tape, f"{name}.scales", rows.scales), shape])
    attributes = {"bits": 8, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 2}
    found = tape.op("GatherBlockQuantized", [stored, ids, scales], attributes, domain=CONTRIB)
    outer = [0] * len(ids.shape)
    size = constant(tape, f"{name}.row", np.array([*outer, num_blocks * BLOCK], np.int64))
    return tape.op("Reshape", [found, size])


def halves(tape: Tape, name: str, values: Halves) -> ir.Value:
    """A flat constant, stored as float16 and read as fp32: ONNX Runtime converts it at load."""
    stored = constant(tape, name, values.reshape(-1))
    return tape.op("Cast", [stored], {"to": ir.DataType.FLOAT})


def rounded_inputs(tape: Tape, x: ir.Value, name: str) -> ir.Value:
    """``x [..., inputs]``, each block of 32 rounded to 127 steps of its largest magnitude."""
    if x.shape is None:
        raise ValueError(f"the shape of the input of {name} is unknown")
    outer = [0] * (len(x.shape) - 1)

    def named(label: str, value: NDArray[np.generic]) -> ir.Value:
        return constant(tape, f"{name}.{label}", value)

    shape = named("blocks", np.array([*outer, -1, BLOCK], np.int64))
    blocks = tape.op("Reshape", [x, shape])
    last_axis = named("axis", np.array([-1], np.int64))
    magnitude = tape.op("ReduceMax", [tape.op("Abs", [blocks]), last_axis], {"keepdims": 1})
    floor = named("floor", np.array(SMALLEST_SCALE, np.float32))
    largest = tape.op("Max", [magnitude, floor])
    steps = named("steps", np.array(_STEPS, np.float32))
    numbers = tape.op("Round", [tape.op("Mul", [blocks, tape.op("Div", [steps, largest])])])
    step = named("step", np.array(1 / _STEPS, np.float32))
    rounded = tape.op("Mul", [numbers, tape.op("Mul", [largest, step])])
    size = named("size", np.array([*outer, x.shape[-1]], np.int64))
    result = tape.op("Reshape", [rounded, size])
    result.type, result.shape = x.type, x.shape
    return result
