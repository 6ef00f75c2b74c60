"""Compressed weights are lossless, and their products equal fp32 products bit for bit."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.runtime.kernels import matmul, weights
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.kernels.weights import WeightFormat, compress
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server.test_matmul_kernel import graph

pytestmark = [
    pytest.mark.skipif(
        Kernels.MATMUL not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("register_bits", "all_kernels"),
]
BLOCK = 32
BITS = {  # of a weight, by format of matrices that are multiplied in fp32
    WeightFormat.FLOAT32: 32,
    WeightFormat.FLOAT16: 16,
    WeightFormat.BFLOAT16: 16,
    WeightFormat.INT8_BLOCKS: 8.5,
    WeightFormat.INT4_BLOCKS: 5,
}


def rounded_to_half(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    return rng.normal(size=shape, scale=scale).astype(np.float16).astype(np.float32)


def matrix_in(weight_format: WeightFormat, num_inputs: int, num_outputs: int, seed: int) -> Array:
    """A matrix ``[inputs, outputs]`` that the format represents exactly."""
    rng = np.random.default_rng(seed)
    if weight_format == WeightFormat.FLOAT32:
        return rng.normal(size=(num_inputs, num_outputs)).astype(np.float32)
    if weight_format == WeightFormat.FLOAT16:
        return rounded_to_half(rng, (num_inputs, num_outputs), 0.05)
    if weight_format == WeightFormat.BFLOAT16:
        bits = rng.normal(size=(num_inputs, num_outputs)).astype(np.float32).view(np.uint32)
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    values = rng.normal(size=(num_inputs // BLOCK, BLOCK, num_outputs), scale=0.05)
    if weight_format == WeightFormat.INT8_BLOCKS:  # Q8_0
        scale = np.abs(values).max(1, keepdims=True) / 127
        scale = scale.astype(np.float16).astype(np.float32)
        blocks = np.rint(values / scale).clip(-128, 127).astype(np.float32) * scale
    elif seed % 2:  # Q4_1
        minimum = values.min(1, keepdims=True)
        scale = (
            ((values.max(1, keepdims=True) - minimum) / 15).astype(np.float16).astype(np.float32)
        )
        quantized = np.rint((values - minimum) / scale).clip(0, 15).astype(np.float32)
        blocks = quantized * scale + minimum.astype(np.float16).astype(np.float32)
    else:  # Q4_0
        extremes = np.abs(values).argmax(1, keepdims=True)
        scale = np.take_along_axis(values, extremes, 1) / -8
        scale = scale.astype(np.float16).astype(np.float32)
        blocks = (np.rint(values / scale + 8).clip(0, 15).astype(np.float32) - 8) * scale
    matrix: Array = blocks.reshape(num_inputs, num_outputs)
    return matrix


def run(file: Path, x: Array, num_threads: int = 1) -> Array:
    return OrtBackend("cpu", num_threads).load(file, ()).bind({}).run({"x": x})["y"].copy()


@pytest.mark.parametrize("weight_format", BITS)
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(32, 16), (448, 40), (800, 522)])
@pytest.mark.parametrize("seed", [0, 1])
def test_matches_fp32_products(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weight_format: WeightFormat,
    num_inputs: int,
    num_outputs: int,
    seed: int,
) -> None:
    matrix = matrix_in(weight_format, num_inputs, num_outputs, seed)
    bias = np.random.default_rng(2).normal(size=num_outputs).astype(np.float32)
    compressed_file = graph(tmp_path / "compressed" / "1" / "g.onnx", matrix, bias, "Gelu")
    rewritten = rewrite(compressed_file, Kernels.MATMUL)
    assert rewritten is not None
    (packed,) = (array for name, array in rewritten.packed.items() if name.endswith(".packed"))
    nodes = onnx.load_from_string(rewritten.model).graph.node
    (node,) = (node for node in nodes if node.op_type == matmul.OPERATOR)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes["weight_format"] == weight_format
    assert packed.dtype == np.uint8
    num_weights = num_inputs * -(-num_outputs // 16) * 16
    assert packed.nbytes * 8 == BITS[weight_format] * num_weights

    rng = np.random.default_rng(3)
    tables = {n: rng.normal(size=(1, n, num_inputs)).astype(np.float32) for n in (1, 2, 6, 7, 130)}
    actual = {(n, t): run(compressed_file, x, t) for n, x in tables.items() for t in (1, 2)}
    monkeypatch.setattr(weights, "_SMALLEST_FIRST", ())
    fp32_file = graph(tmp_path / "floats" / "1" / "g.onnx", matrix, bias, "Gelu")
    for (n, t), y in actual.items():
        np.testing.assert_array_equal(y, run(fp32_file, tables[n], t))


def test_shared_weights_do_not_count_as_unshared(tmp_path: Path) -> None:
    matrix = matrix_in(WeightFormat.FLOAT32, 32, 16, 0)
    file = graph(tmp_path / "1" / "g.onnx", matrix, np.zeros(16, np.float32), "Relu")
    backend = OrtBackend("cpu", 1)
    backend.load(file, ())
    assert backend.unshared_bytes(file) < matrix.nbytes
    assert backend.weight_bytes(file) == matrix.nbytes + 64  # the bias


@settings(max_examples=60)
@given(
    weight_format=st.sampled_from([form for form in BITS if form != WeightFormat.FLOAT32]),
    seed=st.integers(0, 2**32 - 1),
    index=st.tuples(st.integers(0, 63), st.integers(0, 15)),
    bit=st.integers(0, 31),
)
def test_detects_weights_that_a_format_cannot_represent(
    tmp_path_factory: pytest.TempPathFactory,
    weight_format: WeightFormat,
    seed: int,
    index: tuple[int, int],
    bit: int,
) -> None:
    """Flips any bit of any weight; decompression still returns the exact matrix."""
    matrix = matrix_in(weight_format, 64, 16, seed)
    matrix.view(np.uint32)[index] ^= np.uint32(1 << bit)
    matrix[~np.isfinite(matrix)] = 1 / 3
    file = graph(tmp_path_factory.mktemp("any") / "1" / "g.onnx", matrix, None)
    np.testing.assert_array_equal(run(file, np.eye(64, dtype=np.float32)[None])[0], matrix)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 65536.0, 1e-30, -0.0])
@pytest.mark.parametrize("weight_format", BITS)
def test_round_trips_special_values(
    tmp_path: Path, weight_format: WeightFormat, value: float
) -> None:
    matrix = matrix_in(weight_format, 32, 16, 5)
    matrix[7, 3] = value
    file = graph(tmp_path / "1" / "g.onnx", matrix, None)
    x = np.zeros((1, 1, 32), np.float32)
    x[0, 0, 7] = 1
    np.testing.assert_array_equal(run(file, x)[0, 0, 3], np.float32(value))


def test_keeps_nan_in_fp32() -> None:
    matrix = np.full((1, 32, 16), np.nan, np.float32)
    matrix.view(np.uint32)[...] |= 1
    assert compress(matrix)[0] == WeightFormat.FLOAT32
