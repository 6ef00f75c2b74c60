"""The formulas of products with weights in blocks: native/block_matmul.h, in float64."""

from dataclasses import dataclass

import numpy as np

from export.block_matmul import quantize
from server.runtime.kernels.weights import WeightFormat
from server.runtime.memory import Array

BITS = {
    WeightFormat.INT8_BLOCKS: 8,
    WeightFormat.INT4_BLOCKS: 4,
    WeightFormat.SMALL_INT4_BLOCKS: 4,
    WeightFormat.INT6_BLOCKS: 6,
}


@dataclass
class Weights:
    """A matrix as native/block_matmul.h has it: ``[outputs, blocks]``, an even number."""

    numbers: Array  # [outputs, blocks, 32]
    scales: Array  # int16 of each output's unit
    zeros: Array  # in 1/256
    units: Array  # [outputs]
    max_sum: int = 32 * 127
    rounded_bits: int = 0  # of the sums of a block

    @classmethod
    def of(cls, weight: Array, weight_format: WeightFormat) -> "Weights":
        blocks = quantize(weight, BITS[weight_format])
        scales = blocks.scales.astype(np.float64)
        if blocks.offsets is None:
            zeros = np.zeros(scales.shape)
            units = np.abs(scales).max(1) / 32767
            return cls.in_pairs(blocks.numbers - 128.0, scales, zeros, units, rounded_bits=4)
        scales[scales == 0] = np.abs(blocks.offsets[scales == 0])
        zeros = -blocks.offsets.astype(np.float64) / np.where(scales == 0, 1, scales)
        largest = np.abs(blocks.numbers - zeros[..., None]).max()
        max_sum = int(32_000 / (largest + 0.5)) - 32
        if weight_format == WeightFormat.INT4_BLOCKS:
            units = np.abs(scales).max(1) / 32767
        else:
            units = units_of_bytes(scales) / 2**7
            assert np.array_equal(zeros * 16, np.uint8(zeros * 16))
        numbers = blocks.numbers.astype(np.float64)
        return cls.in_pairs(numbers, scales, zeros, units, max_sum=max_sum)

    @classmethod
    def in_pairs(
        cls, numbers: Array, scales: Array, zeros: Array, units: Array, **settings: int
    ) -> "Weights":
        padding = [(0, 0), (0, zeros.shape[1] % 2)]
        return cls(
            np.pad(numbers, [*padding, (0, 0)]),
            np.pad(np.rint(scales / np.where(units, units, 1)[:, None]), padding),
            np.pad(np.rint(zeros * 256), padding),
            units,
            **settings,
        )


def units_of_bytes(scales: Array) -> Array:
    """The powers of two ``[outputs]`` of which scales are multiples from 0 to 255."""
    largest = scales.max(1)
    units = np.where(largest > 0, 2.0 ** (np.frexp(largest)[1] - 8), 1)
    multiples = scales / units[:, None]
    assert np.array_equal(multiples, np.uint8(multiples))
    return units


@dataclass
class Inputs:
    """Rows of x in 8 bits: ``[rows, blocks]``."""

    numbers: Array  # [rows, blocks, 32], minus zero points
    scales: Array

    @classmethod
    def centred(cls, x: Array, num_blocks: int) -> "Inputs":
        """From -127 to 127, as in RowBlock."""
        rows = in_blocks(x, num_blocks)
        largest = np.maximum(np.abs(rows).max(-1, keepdims=True), np.float32(1e-9))
        numbers = np.rint(rows * (np.float32(127) / largest))
        return cls(numbers.astype(np.float64), (largest * np.float32(1 / 127))[..., 0])

    @classmethod
    def shifted(cls, x: Array, num_blocks: int, max_sum: float) -> "Inputs":
        """From 0 to 255, with one of two zero points and either sign, as in RowPair."""
        rows = in_blocks(x, num_blocks)
        above = np.maximum(rows, 0).max(-1, keepdims=True)
        below = np.maximum(-rows, 0).max(-1, keepdims=True)
        largest = np.maximum(np.maximum(above, below), np.float32(1e-9))
        middle = largest * np.float32(1 / 127)
        one_sided = np.maximum(
            largest * np.float32(1 / 191), np.minimum(above, below) * np.float32(1 / 64)
        )
        is_one_sided = one_sided < middle
        inverse = np.float32(1) / np.where(is_one_sided, one_sided, middle)
        inverse = np.where(is_one_sided & (below > above), -inverse, inverse)
        zero = np.where(is_one_sided, 64, 128)

        def rounded(inverse: Array) -> Array:
            exact = rows.astype(np.float64) * inverse + zero  # the kernel rounds it once, to fp32
            numbers: Array = np.clip(np.rint(exact.astype(np.float32)), 0, 255) - zero
            return numbers

        excess = np.abs(rounded(inverse)).sum(-1, keepdims=True).astype(np.float32)
        inverse = inverse / np.maximum(
            excess * (np.float32(1) / np.float32(max_sum)), np.float32(1)
        )
        return cls(rounded(inverse).astype(np.float64), (np.float32(1) / inverse)[..., 0])


def in_blocks(x: Array, num_blocks: int) -> Array:
    rows = x.reshape(len(x), -1, 32)
    return np.pad(rows, [(0, 0), (0, num_blocks - rows.shape[1]), (0, 0)])


def formula_in_floats(x: Array, weights: Weights) -> Array:
    """``y`` of RowBlock, summed in float64."""
    inputs = Inputs.centred(x, weights.zeros.shape[1])
    scales = weights.scales * weights.units[:, None]
    differences = weights.numbers - weights.zeros[..., None] / 256
    sums = np.einsum("rbi,obi->rob", inputs.numbers, differences)
    y: Array = np.einsum("rob,rb,ob->ro", sums, inputs.scales.astype(np.float64), scales)
    return y


def by_pair(values: Array) -> Array:
    return values.reshape(*values.shape[:-1], -1, 2)


def multiply_high(a: Array, b: Array) -> Array:
    product: Array = np.floor((a * b + 2**14) / 2**15)
    return product


def joined(products: Array, weights: Weights) -> Array:
    """Sums over blocks in 16 bits: of 8-bit weights, rounded; of 4-bit ones, with borrows."""
    if weights.rounded_bits:
        return np.floor(products / 2.0**weights.rounded_bits + 0.5)
    pairs = by_pair(products).copy()
    num_left = np.arange(pairs.shape[-2], 0, -1)
    pairs[..., 1] += num_left % 2 - (pairs[..., 0] < 0)
    return pairs.reshape(products.shape)


def formula_in_integers(x: Array, weights: Weights) -> Array:
    """``y`` of RowPair: integers, but for the sum of the pairs."""
    inputs = Inputs.shifted(x, weights.zeros.shape[1], weights.max_sum)
    assert (np.abs(inputs.numbers).sum(-1) <= weights.max_sum + 32).all()
    scales = inputs.scales.astype(np.float64)
    exponents = np.frexp(np.abs(by_pair(scales)).max(-1))[1]  # [rows, pairs]
    fixed = by_pair(scales) * 2.0 ** (15 - exponents[..., None])
    fixed = np.clip(np.rint(fixed), -32767, 32767).reshape(scales.shape)
    fixed[~inputs.numbers.any(-1)] = 0
    whole = np.floor((weights.zeros + 128) / 256)
    products = np.einsum("rbi,obi->rob", inputs.numbers, weights.numbers - whole[..., None])
    products = joined(products, weights)
    assert np.abs(products).max() <= 32767
    totals = by_pair(products * multiply_high(fixed[:, None], weights.scales)).sum(-1)
    assert np.abs(totals).max() < 2**31
    coarsest = max(np.float32(32 * 127) / np.float32(weights.max_sum), np.float32(1))
    largest = np.maximum(np.abs(x).max(1), np.float32(1e-9))
    row_exponents = np.frexp(largest * np.float32(1.0001 / 127) * coarsest)[1]
    shifts = row_exponents[:, None] - exponents
    assert (shifts >= 0).all()
    shifted = np.floor(totals / 2.0 ** shifts[:, None])
    y: Array = shifted.sum(-1) * 2.0 ** row_exponents[:, None] * 2.0**weights.rounded_bits
    # What fractions of zero points of weights add.
    means = inputs.numbers.sum(-1).astype(np.float32) * (inputs.scales * np.float32(1 / 32))
    largest_mean = np.maximum(np.abs(means).max(1, keepdims=True), np.float32(1e-9))
    means = np.rint(means * (np.float32(127) / largest_mean)).astype(np.float64)
    offsets = multiply_high(weights.scales, (whole * 256 - weights.zeros) * 128)
    offsets = np.clip(np.floor((offsets + 64) / 128), -128, 127)
    y += (means @ offsets.T) * (largest_mean * np.float32(1 / 127)) * (32.0 * 128)
    return y * weights.units
