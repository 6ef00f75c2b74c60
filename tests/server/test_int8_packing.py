"""Packed int8 weights: sums of products fit into the SIMD accumulator lanes."""

import platform
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.runtime.kernels.int8 import fit_16_bits, pair_groups
from server.runtime.kernels.library import Kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Array
from tests.server.matmul_graphs import NEEDS_KERNEL, product

pytestmark = [NEEDS_KERNEL, pytest.mark.usefixtures("register_bits")]


def pairs(register_bits: int) -> bool:
    """Whether groups are paired: only AVX2's accumulators have 16 bits."""
    return register_bits == 256 and platform.machine() == "x86_64"


def lane_bounds(groups: Array) -> Array:
    """Largest increase and decrease of each 16-bit lane of ``[groups, 16, 4]``, over 255."""
    lanes = groups.astype(np.int64).reshape(-1, 16, 2, 2)
    return np.stack([np.maximum(lanes, 0).sum(3), np.maximum(-lanes, 0).sum(3)], 1)


@settings(max_examples=40)
@given(
    num_groups=st.integers(1, 70),
    width=st.sampled_from([1, 6, 20, 40, 64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_paired_groups_fit_in_16_bits(
    num_groups: int, width: int, seed: int, register_bits: int
) -> None:
    random = np.random.default_rng(seed)
    panels = random.normal(0, width, (3, num_groups, 16, 4)).clip(-64, 64).astype(np.int8)
    blocks, order = pair_groups(panels.copy())
    for panel, packed, (num_paired, *inputs) in zip(panels, blocks, order, strict=True):
        groups = np.array(inputs) // 4
        assert sorted(inputs) == [4 * group for group in range(num_groups)]
        np.testing.assert_array_equal(packed, panel[groups])
        if not pairs(register_bits):
            assert num_paired == 0
            continue
        assert num_paired % 2 == 0
        bounds = lane_bounds(packed)
        together = bounds[0:num_paired:2] + bounds[1:num_paired:2]
        assert together.max(initial=0) <= 128
        alone = bounds[num_paired:]
        for index in range(1, len(alone)):  # no remaining pair fits
            assert (alone[index] + alone[index - 1]).max() > 128


def test_does_not_pair_groups_with_the_largest_weights(register_bits: int) -> None:
    order = pair_groups(np.full((1, 9, 16, 4), 64, np.int8))[1]
    assert order[0, 0] == 0
    order = pair_groups(np.full((1, 9, 16, 4), 32, np.int8))[1]
    assert order[0, 0] == (8 if pairs(register_bits) else 0)


def test_does_not_replace_weights_that_overflow_16_bits(tmp_path: Path) -> None:
    """Older bundles have such weights; the sum of two products would saturate."""
    integers = np.zeros((8, 4), np.int8)
    assert fit_16_bits(integers)
    integers[2:4, 1] = 64
    assert fit_16_bits(integers)
    integers[3, 1] = 65
    assert not fit_16_bits(integers)
    file = product(tmp_path / "a" / "1", np.full((8, 16), 3.0, np.float32))
    assert rewrite(file, Kernels.INT8_MATMUL) is not None
    model = onnx.load(file)
    (matrix,) = [tensor for tensor in model.graph.initializer if tensor.name == "w.int8"]
    matrix.CopyFrom(onnx.numpy_helper.from_array(np.full((8, 16), 127, np.int8), "w.int8"))
    onnx.save(model, file)
    assert rewrite(file, Kernels.INT8_MATMUL) is None
