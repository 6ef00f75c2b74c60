"""Matrix products in blocks of 32 inputs: inputs rounded to 8 bits, matrices to 8, 6 or 4 bits.

An outlier among the inputs coarsens only its own block. Measurements: docs/decisions/0006-int8.md
and 0011-int4.md.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.blocks import (
    BLOCK,
    STEPS,
    Blocks,
    Halves,
    InBytes,
    between_extremes,
    fitted,
    in_blocks,
    rounded_to_6_bits,
    rounded_to_8_bits,
)
from export.gptq import Moments, calibrated
from export.kept_blocks import had_5_or_6_bits, kept_in_4_bits
from export.quantized_matmul import CONTRIB, SMALLEST_SCALE, Weight, constant, pack_bits

_ROUNDED = {8: rounded_to_8_bits, 6: rounded_to_6_bits}
# If this share of a matrix's blocks had 4 bits, it gets float16 scales, which keep them. In a
# checkpoint of 8 bits, a few blocks seem so by chance.
_MIN_KEPT = 0.5


def quantize(weight: Weight, bits: int, moments: Moments | None = None) -> Blocks:
    """Rounds ``weight [inputs, outputs]`` to blocks of ``bits`` bits: 8, 6 or 4.

    Weights that had 4 bits in a GGUF file keep them even if more are requested: more would add
    bytes, but no fidelity. Those that had 5 or 6 get 6.

    Args:
        moments: second moments of the inputs, for 4 bits. Without them, the error of the weights
            is minimized instead of that of the outputs.
    """
    matrix = in_blocks(weight)
    blocks, is_kept = kept_in_4_bits(matrix)
    if is_kept.all():
        return blocks
    if bits != 4:
        return _ROUNDED[bits](matrix)
    form = None
    if not _had_4_bits(matrix, is_kept):
        if had_5_or_6_bits(matrix):
            return rounded_to_6_bits(matrix)
        form = InBytes.of(matrix)
        blocks, is_kept = between_extremes(matrix, form), _is_zero(matrix)
    if moments is None:
        return fitted(matrix, blocks, form=form)
    return calibrated(matrix, moments, blocks, is_kept, form)


def is_rounded_to_4_bits(weight: Weight) -> bool:
    """Whether :func:`quantize` with 4 bits rounds any of ``weight``, and so reads its moments."""
    matrix = in_blocks(weight)
    is_kept = kept_in_4_bits(matrix)[1]
    return not is_kept.all() and (_had_4_bits(matrix, is_kept) or not had_5_or_6_bits(matrix))


def _had_4_bits(matrix: Weight, is_kept: NDArray[np.bool_]) -> bool:
    """Whether enough blocks are kept in 4 bits, besides those of zeros."""
    return bool((is_kept & ~_is_zero(matrix)).mean() >= _MIN_KEPT)


def _is_zero(matrix: Weight) -> NDArray[np.bool_]:
    """Which blocks are zeros, ``[rows, blocks]``."""
    is_zero: NDArray[np.bool_] = np.abs(matrix).max(-1) == 0
    return is_zero


def quantize_table(table: Weight, bits: int) -> Blocks:
    """Rounds the rows of a lookup table, ``table [rows, size]``, to blocks of 8, 6 or 4 bits.

    With 4 bits, zero points are integers, as ``GatherBlockQuantized`` requires. A table that 4
    bits hold only with other zero points gets 8 bits.
    """
    matrix = table.reshape(len(table), -1, BLOCK)
    if bits != 4:
        return _ROUNDED[bits](matrix)
    blocks, is_kept = kept_in_4_bits(matrix)
    if is_kept.all():
        return blocks if _has_whole_zero_points(blocks) else rounded_to_8_bits(matrix)
    form = InBytes.of(matrix, fractions=1)
    return fitted(matrix, between_extremes(matrix, form), form=form)


def _has_whole_zero_points(blocks: Blocks) -> bool:
    """Whether all zero points of 4-bit blocks are integers from 0 to 15."""
    zeros = np.round(blocks.zero_points())
    is_kept = np.array_equal(-zeros * blocks.scales.astype(np.float32), np.asarray(blocks.offsets))
    return bool(is_kept and 0 <= zeros.min() <= zeros.max() <= 15)


def block_matmul(
    tape: Tape,
    x: ir.Value,
    name: str,
    weight: Weight,
    bits: int,
    moments: Moments | None = None,
) -> ir.Value:
    """``x [..., inputs]``, rounded in blocks, times ``weight [inputs, outputs]``."""
    blocks = quantize(weight, bits, moments)
    numbers = constant(tape, f"{name}.int{blocks.bits}", pack_bits(blocks.numbers, blocks.bits))
    return multiply(tape, x, name, numbers, blocks)


def multiply(tape: Tape, x: ir.Value, name: str, numbers: ir.Value, blocks: Blocks) -> ir.Value:
    """``x [..., inputs]``, rounded in blocks, times the matrix whose numbers are already stored.

    ``MatMulNBits`` with fp32 inputs: the graph itself rounds, so that every ONNX Runtime computes
    the same. Zero points are float, since an offset is not a multiple of the scale.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    num_outputs, num_blocks, _ = blocks.numbers.shape
    if blocks.offsets is not None:
        # A block of equal values may have the scale 0: its offset becomes a multiple of another
        # scale.
        magnitudes = np.where(blocks.offsets == 0, np.float16(1), np.abs(blocks.offsets))
        scales = np.where(blocks.scales == 0, magnitudes, blocks.scales)
        blocks = blocks._replace(scales=scales)
    inputs = [rounded_inputs(tape, x, name), numbers, halves(tape, f"{name}.scales", blocks.scales)]
    if blocks.offsets is not None:
        inputs.append(_zero_points(tape, f"{name}.zeros", blocks.zero_points()))
    attributes = {
        "K": num_blocks * BLOCK,
        "N": num_outputs,
        "bits": blocks.bits,
        "block_size": BLOCK,
    }
    return tape.op("MatMulNBits", inputs, attributes, domain=CONTRIB)


def gather_rows(tape: Tape, ids: ir.Value, name: str, stored: ir.Value, rows: Blocks) -> ir.Value:
    """The rows ``ids [...]`` of the matrix ``rows``, in fp32: ``[..., size]``.

    Zero points of 4 bits, which must be integers, are stored one per byte.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    if ids.shape is None:
        raise ValueError(f"the shape of the ids for {name} is unknown")
    num_rows, num_blocks, _ = rows.numbers.shape
    shape = constant(tape, f"{name}.scales_shape", np.array([num_rows, num_blocks, 1], np.int64))
    scales = tape.op("Reshape", [halves(tape, f"{name}.scales", rows.scales), shape])
    attributes = {"bits": rows.bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 2}
    inputs = [stored, ids, scales]
    if rows.offsets is not None:
        zeros = np.round(rows.zero_points()).astype(np.uint8)[..., None]
        inputs.append(constant(tape, f"{name}.zeros", zeros))
    found = tape.op("GatherBlockQuantized", inputs, attributes, domain=CONTRIB)
    outer = [0] * len(ids.shape)
    size = constant(tape, f"{name}.row", np.array([*outer, num_blocks * BLOCK], np.int64))
    return tape.op("Reshape", [found, size])


def halves(tape: Tape, name: str, values: Halves) -> ir.Value:
    """A flat constant, stored as float16 and read as fp32: ONNX Runtime converts it at load."""
    stored = constant(tape, name, values.reshape(-1))
    return tape.op("Cast", [stored], {"to": ir.DataType.FLOAT})


def _zero_points(tape: Tape, name: str, zeros: NDArray[np.float32]) -> ir.Value:
    """A flat constant, stored as float16 if that is exact, as for zero points of 8 bits."""
    rounded = zeros.astype(np.float16)
    if np.array_equal(rounded, zeros):
        return halves(tape, name, rounded)
    return constant(tape, name, zeros.reshape(-1))


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
    steps = named("steps", np.array(STEPS, np.float32))
    numbers = tape.op("Round", [tape.op("Mul", [blocks, tape.op("Div", [steps, largest])])])
    step = named("step", np.array(1 / STEPS, np.float32))
    rounded = tape.op("Mul", [numbers, tape.op("Mul", [largest, step])])
    size = named("size", np.array([*outer, x.shape[-1]], np.int64))
    result = tape.op("Reshape", [rounded, size])
    result.type, result.shape = x.type, x.shape
    return result
