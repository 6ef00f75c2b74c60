"""Packs block-quantized matrices for native/block_matmul.h, for products and embeddings."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from server.runtime.kernels.epilogue import Epilogue
from server.runtime.kernels.weights import WeightFormat
from server.runtime.memory import Array

BLOCK = 32  # inputs that share a scale: native/weight_format.h
MAX_INPUTS = 65536  # kMaxInputs of native/block_matmul.h
_KR = 4  # how many inputs of an output are adjacent in packed weights
_MAX_SHORT = np.iinfo(np.int16).max
_ZERO_POINT_UNIT = 2.0**-8  # kZeroPointBits of native/block_matmul.h
# SmallInt4Pair in native/block_matmul.h: its zero points are multiples of 1/16; kernels multiply
# its scales by 2^kScaleShift.
_FRACTIONS, _SCALE_FACTOR = 16, 2**7


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """A matrix ``[outputs, blocks * 32]``.

    Attributes:
        numbers: quantized weights, uint8 ``[outputs, blocks, bytes]``, as in ``MatMulNBits``.
        scales: float16 ``[outputs, blocks]``.
        zeros: zero points of 4-bit numbers, float32 ``[outputs, blocks]``; None with 8 bits.
    """

    numbers: Array
    scales: Array
    zeros: Array | None = None

    @classmethod
    def of(cls, numbers: Array, scales: Array, zeros: Array | None) -> "BlockMatrix | None":
        """Makes a matrix from fp32 ``scales``; None if float16 cannot hold them exactly."""
        halves = scales.astype(np.float16)
        return cls(numbers, halves, zeros) if np.array_equal(halves, scales) else None


class PackedBlocks(NamedTuple):
    """A packed matrix. ``panels``: uint8 ``[n]``."""

    weight_format: WeightFormat
    panels: Array


def pack(matrix: BlockMatrix, epilogue: Epilogue) -> PackedBlocks:
    """Packs a matrix in the smallest format that holds it.

    Args:
        matrix: the matrix to pack.
        epilogue: orders the outputs.
    """
    numbers, zeros, scales = matrix.numbers, matrix.zeros, matrix.scales.astype(np.float64)
    if zeros is None:
        numbers, weight_format = numbers ^ 128, WeightFormat.INT8_BLOCKS  # two's complement
        if not (numbers & 3).any():
            numbers, weight_format = _in_6_bits(numbers), WeightFormat.INT6_BLOCKS
    else:
        scales[_are_zeros(numbers, zeros)] = 0  # an unused large scale would coarsen the others
        numbers, weight_format = _reorder_4_bits(numbers), WeightFormat.INT4_BLOCKS
        units = np.exp2(np.frexp(scales.max(1))[1] - 8.0)  # the largest scale has 128 to 255 units
        small = [scales / units[:, None], zeros * _FRACTIONS]
        if all(map(_are_bytes, small)):
            parts = [values.astype(np.uint8) for values in small]
            panels = _panels(numbers, parts, units / _SCALE_FACTOR, epilogue)
            return PackedBlocks(WeightFormat.SMALL_INT4_BLOCKS, panels)
    units = np.abs(scales).max(1) / _MAX_SHORT
    shorts = [scales / np.where(units, units, 1)[:, None]]
    if zeros is not None:
        shorts.append(zeros / _ZERO_POINT_UNIT)
    parts = [np.rint(values).astype(np.int16) for values in shorts]
    return PackedBlocks(weight_format, _panels(numbers, parts, units, epilogue))


def _are_bytes(values: Array) -> bool:
    """Whether uint8 holds these values."""
    return bool(((values >= 0) & (values <= 255) & (values == np.rint(values))).all())


def largest_number(matrix: BlockMatrix) -> float:
    """Returns the largest magnitude of a 4-bit number minus its zero point."""
    nibbles = np.stack([matrix.numbers & 15, matrix.numbers >> 4])
    low, high = nibbles.min((0, -1)), nibbles.max((0, -1))
    return float(np.maximum(matrix.zeros - low, high - matrix.zeros).max())


def _panels(numbers: Array, parts: list[Array], units: Array, epilogue: Epilogue) -> Array:
    """Makes panels: units, then for each pair of blocks its scales, zero points and numbers.

    Args:
        numbers: uint8 ``[outputs, blocks, bytes]``.
        parts: scales and, if any, zero points, ``[outputs, blocks]`` each.
        units: the unit of each output's scales, ``[outputs]``.
        epilogue: orders the outputs.
    """
    padding = [(0, 0), (0, numbers.shape[1] % 2)]  # to pairs of blocks
    pairs = [_pairs(np.pad(values, padding), epilogue) for values in parts]
    words = _words(np.pad(numbers, [*padding, (0, 0)]), epilogue)
    pairs.append(words.reshape(*pairs[0].shape[:2], -1))
    joined = np.concatenate([part.view(np.uint8) for part in pairs], -1)
    by_panel = epilogue.panels(units.astype(np.float32)).view(np.uint8)
    return np.concatenate([by_panel, joined.reshape(len(joined), -1)], -1).reshape(-1)


def _words(numbers: Array, epilogue: Epilogue) -> Array:
    """Rearranges ``[outputs, blocks, bytes]`` as ``[panels, blocks, words, 16, 4]``."""
    columns = epilogue.panels(np.moveaxis(numbers, 0, -1))  # [blocks, bytes, panels, 16]
    num_blocks, num_bytes, num_panels, width = columns.shape
    words = columns.reshape(num_blocks, num_bytes // _KR, _KR, num_panels, width)
    packed: Array = np.ascontiguousarray(words.transpose(3, 0, 1, 4, 2))
    return packed


def _pairs(values: Array, epilogue: Epilogue) -> Array:
    """Rearranges ``[outputs, blocks]`` as ``[panels, pairs, 16 * 2]``."""
    panels = epilogue.panels(values.T)  # [blocks, panels, 16]
    pairs = panels.reshape(-1, 2, *panels.shape[1:]).transpose(2, 0, 3, 1)
    packed: Array = np.ascontiguousarray(pairs).reshape(*pairs.shape[:2], -1)
    return packed


def _are_zeros(numbers: Array, zeros: Array) -> Array:
    """Finds blocks of 4-bit numbers whose weights are all zero: ``[outputs, blocks]``."""
    whole = np.clip(np.rint(zeros), 0, 15)
    both = (whole * 17).astype(np.uint8)  # the same number in both halves of a byte
    found: Array = (whole == zeros) & (numbers == both[..., None]).all(-1)
    return found


def _in_6_bits(numbers: Array) -> Array:
    """Packs each 16 of ``[outputs, blocks, 32]`` numbers: the last 4 in the others' low 2 bits."""
    groups = numbers.reshape(*numbers.shape[:2], 2, 4, _KR)
    fourth = groups[..., 3:, :]
    low_bits = np.concatenate([fourth >> 6, fourth >> 4 & 3, fourth >> 2 & 3], -2)
    packed: Array = groups[..., :3, :] | low_bits
    return packed.reshape(*numbers.shape[:2], -1)


def _reorder_4_bits(numbers: Array) -> Array:
    """Puts inputs ``i`` and ``i + 4`` of each eight into a byte, instead of two adjacent ones."""
    inputs = np.stack([numbers & 15, numbers >> 4], -1).reshape(*numbers.shape[:2], -1, 2, _KR)
    packed: Array = inputs[..., 0, :] | inputs[..., 1, :] << 4
    return packed.reshape(numbers.shape)
