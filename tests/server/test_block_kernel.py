"""The operator for weights in blocks follows its formula, and is as exact as the standard ones."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.tape import Tape

from export.block_matmul import gather_rows, multiply, quantize
from export.blocks import BLOCK, between_extremes, rounded_to_8_bits
from export.quantized_matmul import constant
from server.runtime.kernels.library import Kernels, supported_kernels, use_registers
from server.runtime.kernels.rewrite import rewrite
from server.runtime.kernels.weights import WeightFormat
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server.block_formulas import BITS, Weights, formula_in_floats, formula_in_integers
from tests.server.conftest import WIDTHS
from tests.server.matmul_graphs import (
    append_epilogue,
    block_product,
    save,
    standard_session,
    weight_formats,
)

# Relative to the largest input times the square root of their number: the operator rounds more.
TOLERANCE = 5e-4
pytestmark = [
    pytest.mark.skipif(
        Kernels.BLOCK_MATMUL not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("all_kernels"),
]


@pytest.fixture
def registers() -> Iterator[Callable[[int], bool]]:
    """``use_registers``; afterwards, the default is restored."""
    yield use_registers
    use_registers(0)


def random_weights(
    rng: np.random.Generator, num_inputs: int, num_outputs: int, weight_format: WeightFormat
) -> Array:
    """``[inputs, outputs]``, which the bits of this format make it be packed in.

    A matrix most of whose blocks are exact with float16 scales and offsets keeps those.
    """
    weight = rng.normal(size=(num_inputs, num_outputs)).astype(np.float32)
    if weight_format != WeightFormat.INT4_BLOCKS:
        return weight
    matrix = between_extremes(weight.T.reshape(num_outputs, -1, BLOCK)).restored()
    return matrix.reshape(num_outputs, num_inputs).T.copy()


def saved_product(path: Path, weight: Array, weight_format: WeightFormat) -> Path:
    """Saves ``y = x @ weight``, which the native operator computes in this format."""
    file = block_product(path, weight, BITS[weight_format])
    assert weight_formats(rewrite(file, Kernels.BLOCK_MATMUL)) == [weight_format]
    return file


def outliers(rng: np.random.Generator, num_rows: int, num_inputs: int) -> Array:
    """Rows with outliers, of very different sizes, with blocks of zeros, and of zeros only."""
    x = rng.normal(size=(num_rows, num_inputs)).astype(np.float32)
    x[:, 3] *= 80
    x[1::3] *= 1e-5
    x[2::7] *= 1e33
    x[3::5, :64] = 0
    x[4::9] *= 1e-35
    return x


@pytest.mark.parametrize("weight_format", BITS)
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(32, 3), (64, 16), (96, 40), (576, 300)])
def test_is_as_exact_as_the_standard_operators(
    tmp_path: Path,
    register_bits: int,
    num_inputs: int,
    num_outputs: int,
    weight_format: WeightFormat,
) -> None:
    """Beside the product of ``x`` as it is with the weights as they are stored."""
    rng = np.random.default_rng(num_inputs)
    weight = random_weights(rng, num_inputs, num_outputs, weight_format)
    weight[:, -1] = 0
    blocks = quantize(weight, BITS[weight_format])
    stored = blocks.restored().reshape(num_outputs, -1).T.astype(np.float64)
    file = saved_product(tmp_path / "a" / "1", weight, weight_format)
    native, standard = OrtBackend("cpu", 2).load(file, ()).bind({}), standard_session(file)
    errors: list[Array] = []
    for num_rows in (1, 2, 3, 5, 6, 7, 12, 65):
        x = outliers(rng, num_rows, num_inputs)
        (expected,) = standard.run(None, {"x": x})
        actual = native.run({"x": x})["y"]
        scale = np.abs(x).max(1, keepdims=True) * np.sqrt(num_inputs)
        if register_bits == 256:  # the same numbers
            assert (np.abs(actual - expected) <= TOLERANCE * scale).all()
        exact = x.astype(np.float64) @ stored
        is_large = scale[:, 0] > 1e-6  # smaller inputs are rounded to zero
        both = (np.stack([actual, expected]) - exact)[:, is_large]
        errors.append(both / scale[is_large])
        assert not actual[:, -1].any()
    ours, theirs = np.sqrt(np.square(np.concatenate(errors, 1)).mean((1, 2)))
    assert ours <= (1.01 if register_bits == 256 else 0.95) * theirs


@pytest.mark.parametrize("weight_format", BITS)
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(32, 4), (64, 16), (96, 40), (544, 20), (576, 300)]
)
def test_follows_the_formula(
    tmp_path: Path,
    register_bits: int,
    num_inputs: int,
    num_outputs: int,
    weight_format: WeightFormat,
) -> None:
    rng = np.random.default_rng(num_inputs)
    weight = random_weights(rng, num_inputs, num_outputs, weight_format)
    if weight_format == WeightFormat.SMALL_INT4_BLOCKS:
        weight[:, 0] = 0.01 * weight[:, 0] - 1  # zero points of almost 16, numbers of 0
        weight[:, 1] *= 2.0 ** -(np.arange(num_inputs) // 32 % 9)  # scales from 1 to 255 units
        weight[:, 2] = 0.01 * weight[:, 2] + 1  # zero points of 0, numbers of 15
    else:
        weight[:, 1] = 0.125 * (8 - np.arange(num_inputs) % 16)  # negative scales with 4 bits
        weight[:, 2] = 1  # all numbers are as large as can be
    file = saved_product(tmp_path / "a" / "1", weight, weight_format)
    native = OrtBackend("cpu", 2).load(file, ()).bind({})
    formula = formula_in_floats if register_bits == 256 else formula_in_integers
    weights = Weights.of(weight, weight_format)
    for num_rows in (1, 6, 9, 65):
        x = outliers(rng, num_rows, num_inputs)
        x[2::5] = np.sign(x[2::5])  # all numbers are as large as can be
        x[5::8] = [[1], [-1]][num_rows % 2]  # the same, on one side
        x[6::8] = np.where(np.arange(num_inputs) % 32, 1, -1 / 3)
        scale = np.abs(x).max(1, keepdims=True) * np.sqrt(num_inputs)
        scale += np.abs(x).sum(1, keepdims=True)
        error = np.abs(native.run({"x": x})["y"] - formula(x, weights))
        assert (error <= 1e-6 * scale).all()


@pytest.mark.parametrize("weight_format", BITS)
@pytest.mark.parametrize("num_inputs", [576, 96])
def test_bits_do_not_depend_on_companions(
    tmp_path: Path,
    registers: Callable[[int], bool],
    weight_format: WeightFormat,
    num_inputs: int,
) -> None:
    """Nor on the CPU, except that AVX-512 adds in integers, AVX2 in floats."""
    rng = np.random.default_rng(0)
    weight = random_weights(rng, num_inputs, 50, weight_format)
    file = saved_product(tmp_path / "1", weight, weight_format)
    x = outliers(rng, 40, num_inputs)
    x[5::6] = np.sign(x[5::6])
    results = {}
    for width in (*WIDTHS, 0):
        registers(width)
        native = OrtBackend("cpu", 1).load(file, ()).bind({})
        results[width] = native.run({"x": x})["y"].copy()
        for rows in (slice(0, 1), slice(7, 8), slice(33, 39), slice(20, 40)):
            np.testing.assert_array_equal(native.run({"x": x[rows]})["y"], results[width][rows])
    for width in WIDTHS:
        if width != min(WIDTHS):
            np.testing.assert_array_equal(results[width], results[0])


@pytest.mark.usefixtures("register_bits")
def test_4_bits_keep_weights_far_from_zero(tmp_path: Path) -> None:
    """Blocks of equal weights, and one whose zero point is 30."""
    weight = np.repeat(np.array([[3.0, -0.01, 1e-3, 0.0, -4.0]], np.float32), 64, 0)
    weight[:, 4] -= np.tile(np.arange(16, dtype=np.float32), 4) * 0.26
    x = np.abs(np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32))
    file = block_product(tmp_path / "a" / "1", weight, 4)
    assert rewrite(file, Kernels.BLOCK_MATMUL) is not None
    actual = OrtBackend("cpu", 1).load(file, ()).bind({}).run({"x": x})["y"]
    np.testing.assert_allclose(actual, x @ weight, rtol=0.01)


def test_leaves_numbers_out_of_range_to_the_standard_operator(tmp_path: Path) -> None:
    weight = 40 + np.tile(np.arange(16, dtype=np.float32), (40, 4)).T
    assert rewrite(block_product(tmp_path / "1", weight, 4), Kernels.BLOCK_MATMUL) is None


@pytest.mark.parametrize("activation", ["Relu", "SiluGate"])
@pytest.mark.parametrize("weight_format", BITS)
@pytest.mark.parametrize("num_outputs", [44, 24, 64])
@pytest.mark.usefixtures("register_bits")
def test_fuses_the_epilogue(
    tmp_path: Path, activation: str, weight_format: WeightFormat, num_outputs: int
) -> None:
    rng = np.random.default_rng(0)
    weight = random_weights(rng, 64, num_outputs, weight_format)
    bias = rng.normal(size=num_outputs).astype(np.float32)
    file = saved_product(tmp_path / "1", weight, weight_format)
    product = OrtBackend("cpu", 1).load(file, ()).bind({})
    file = append_epilogue(file, activation, bias)
    rewritten = rewrite(file, Kernels.BLOCK_MATMUL)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert sorted(node.op_type for node in nodes) == ["DynamicBlockMatMul", "Identity", "Identity"]
    assert weight_formats(rewritten) == [weight_format]
    is_gated = activation == "SiluGate"
    width = num_outputs // 2 if is_gated else num_outputs
    fused = OrtBackend("cpu", 1).load(file, ()).bind({})
    for num_rows in (1, 9):
        x = rng.normal(size=(num_rows, 64)).astype(np.float32)
        rest = rng.normal(size=(num_rows, width)).astype(np.float32)
        biased = product.run({"x": x})["y"] + bias
        if is_gated:
            gate, value = biased[:, :width], biased[:, width:]
            expected = gate / (1 + np.exp(-gate)) * value
        else:
            expected = np.maximum(biased, 0)
        actual = fused.run({"x": x, "rest": rest})["z"]
        np.testing.assert_allclose(actual, expected + rest, rtol=2e-4, atol=2e-4)


@pytest.mark.usefixtures("register_bits")
def test_tied_matrix_is_looked_up_and_multiplied(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(100, 64)).astype(np.float32)
    blocks = rounded_to_8_bits(embedding.reshape(100, -1, 32))
    x = ir.val("x", ir.DataType.FLOAT, ["rows", 64])
    ids = ir.val("token_ids", ir.DataType.INT64, ["tokens"])
    tape = Tape()
    stored = constant(tape, "w.int8", blocks.numbers)
    y = multiply(tape, x, "w", stored, blocks)
    y.name, y.dtype, y.shape = "y", ir.DataType.FLOAT, ir.Shape(["rows", 100])
    found = gather_rows(tape, ids, "w.rows", stored, blocks)
    found.name, found.dtype, found.shape = "found", ir.DataType.FLOAT, ir.Shape(["tokens", 64])
    file = save(tmp_path / "1", [x, ids], [y, found], tape)
    inputs = {"x": outliers(rng, 5, 64), "token_ids": np.array([0, 99, 7])}
    actual = OrtBackend("cpu", 1).load(file, ()).session.run(["y", "found"], inputs)
    expected = standard_session(file).run(["y", "found"], inputs)
    product = OrtBackend("cpu", 2).load(block_product(tmp_path / "2", embedding.T, 8), ())
    np.testing.assert_array_equal(actual[0], product.bind({}).run({"x": inputs["x"]})["y"])
    np.testing.assert_array_equal(actual[1], expected[1])
    np.testing.assert_allclose(actual[1], embedding[[0, 99, 7]], atol=0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight_format", BITS)
@pytest.mark.usefixtures("register_bits")
def test_non_finite_row_does_not_affect_other_rows(
    tmp_path: Path, bad: float, weight_format: WeightFormat
) -> None:
    rng = np.random.default_rng(0)
    weight = random_weights(rng, 576, 32, weight_format)
    file = saved_product(tmp_path / "1", weight, weight_format)
    native = OrtBackend("cpu", 1).load(file, ()).bind({})
    x = rng.normal(size=(12, 576)).astype(np.float32)
    expected = native.run({"x": x})["y"].copy()
    for column in (40, 570):
        changed = x.copy()
        changed[2, column] = bad
        actual = native.run({"x": changed})["y"]
        assert not np.isfinite(actual[2]).any()
        others = [0, 1, *range(3, 12)]
        np.testing.assert_array_equal(actual[others], expected[others])


def test_does_not_replace_other_products(tmp_path: Path) -> None:
    """Cases: inputs without rounding or with another; other or fewer scales; zeros; a bias."""
    weight = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    file = block_product(tmp_path / "1", weight, 8)
    others: dict[str, Array] = {
        "inputs": np.zeros(0, np.float32),
        "scales": np.full((32, 2), 0.1, np.float32),
        "zeros": np.full((32, 2), 128, np.uint8),
        "order": np.zeros(64, np.int32),
        "bias": np.ones(32, np.float32),
        "w.scales": np.ones(32, np.float16),
        "w.steps": np.array(63, np.float32),
        "w.step": np.array(1 / 63, np.float32),
        "w.floor": np.array(1, np.float32),
        "w.axis": np.array([-2], np.int64),
    }
    places = {"scales": 2, "zeros": 3, "order": 4, "bias": 5}
    for change, value in others.items():
        model = onnx.load(file)
        (node,) = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
        other = onnx.numpy_helper.from_array(value, change)
        if change == "inputs":
            node.input[0] = "x"
        elif change in places:
            node.input.extend([""] * (places[change] + 1 - len(node.input)))
            node.input[places[change]] = change
            model.graph.initializer.append(other)
        else:
            next(t for t in model.graph.initializer if t.name == change).CopyFrom(other)
        changed = tmp_path / f"{change}.onnx"
        onnx.save(model, changed)
        assert rewrite(changed, Kernels.BLOCK_MATMUL) is None, change
