"""LoRA adapters in the native products, against the standard operators and NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_ir.tape import Tape

from export.block_matmul import block_matmul
from export.quantized_matmul import constant, row_int8
from server.runtime.contract import BoundGraph
from server.runtime.kernels.adapters import ADAPTER_PART, FIRST_INPUT
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server.matmul_graphs import save

pytestmark = [
    pytest.mark.skipif(
        Kernels.MATMUL not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("register_bits", "all_kernels"),
]

PRODUCTS = {
    "fp32": lambda tape, x, weight: tape.op("MatMul", [x, constant(tape, "w", weight)]),
    "int8": lambda tape, x, weight: row_int8(tape, x, "w", weight),
    "block8": lambda tape, x, weight: block_matmul(tape, x, "w", weight, 8),
    "block4": lambda tape, x, weight: block_matmul(tape, x, "w", weight, 4),
}
NUM_ADAPTERS = 3


def factors(num_inputs: int, rank: int, num_outputs: int, dtype: Any) -> tuple[Array, Array]:
    """Factors ``[adapters + 1, ...]``, rounded to ``dtype``; those of index 0 are zeros."""
    random = np.random.default_rng(rank)
    a = random.normal(size=(NUM_ADAPTERS + 1, num_inputs, rank)).astype(dtype)
    b = random.normal(size=(NUM_ADAPTERS + 1, rank, num_outputs)).astype(dtype)
    a[0], b[0] = 0, 0
    return a, b


def graph(
    path: Path,
    product: str,
    weight: Array,
    a: Array,
    b: Array,
    *,
    bias: Array | None = None,
    activation: str = "",
) -> Path:
    """Saves ``y = activation(x @ weight + x @ a[i] @ b[i] + bias)`` as the export writes it."""
    num_inputs, num_outputs = weight.shape
    x = ir.val("x", ir.DataType.FLOAT, ["batch", "length", num_inputs])
    index = ir.val("adapters", ir.DataType.INT32, ["batch"])
    tape = Tape()

    def typed(value: ir.Value, width: int) -> ir.Value:
        value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape(["batch", "length", width])
        return value

    y = typed(PRODUCTS[product](tape, x, weight), num_outputs)
    gathered = []
    for name, factor in (("a", a), ("b", b)):
        value = constant(tape, name, factor)
        if factor.dtype != np.float32:
            value = tape.op("Cast", [value], {"to": ir.DataType.FLOAT})
        gathered.append(tape.op("Gather", [value, index], {"axis": 0}))
    change = tape.op("MatMul", [tape.op("MatMul", [x, gathered[0]]), gathered[1]])
    y = typed(tape.op("Add", [y, change]), num_outputs)
    if bias is not None:
        y = typed(tape.op("Add", [y, constant(tape, "bias", bias)]), num_outputs)
    if activation == "SiluGate":
        num_outputs //= 2
        gate, value = tape.op_multi_out("Split", [y], {"axis": -1, "num_outputs": 2}, num_outputs=2)
        y = tape.op("Mul", [tape.op("Mul", [gate, tape.op("Sigmoid", [gate])]), value])
    elif activation:
        y = tape.op(activation, [y])
    y = typed(tape.op("Identity", [typed(y, num_outputs)]), num_outputs)
    y.name = "y"
    return save(path, [x, index], [y], tape)


def load_native(file: Path, num_threads: int = 1) -> BoundGraph:
    """The graph with the native product, which must have taken the adapters."""
    kernels = Kernels.MATMUL | Kernels.INT8_MATMUL | Kernels.BLOCK_MATMUL
    rewritten = rewrite(file, kernels)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    native = [node for node in nodes if node.op_type != "Identity"]
    assert [node.op_type for node in native] == [node.op_type for node in native if node.domain]
    (node,) = native
    assert node.input[FIRST_INPUT[node.op_type]] == "adapters"
    return OrtBackend("cpu", num_threads).load(file, ()).bind({})


def standard(file: Path, inputs: dict[str, Array]) -> Array:
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    result: Array = session.run(["y"], inputs)[0]
    return result


def inputs_of(num_inputs: int, adapters: list[int], length: int = 3) -> dict[str, Array]:
    random = np.random.default_rng(len(adapters))
    x = random.normal(size=(len(adapters), length, num_inputs)).astype(np.float32)
    return {"x": x, "adapters": np.array(adapters, np.int32)}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("activation", ["", "Relu", "Gelu", "SiluGate"])
def test_fp32_products_equal_the_standard_operators(
    tmp_path: Path, activation: str, dtype: Any
) -> None:
    random = np.random.default_rng(5)
    for num_inputs, rank, num_outputs in ((40, 4, 64), (400, 20, 38), (33, 64, 208)):
        weight = random.normal(size=(num_inputs, num_outputs)).astype(np.float32)
        bias = random.normal(size=num_outputs).astype(np.float32)
        a, b = factors(num_inputs, rank, num_outputs, dtype)
        folder = tmp_path / f"{num_inputs}"
        file = graph(folder, "fp32", weight, a, b, bias=bias, activation=activation)
        native = load_native(file)
        for adapters in ([0], [2], [1, 0, 3, 1, 2], [3] * 9, [0, 0]):
            inputs = inputs_of(num_inputs, adapters)
            expected = standard(file, inputs)
            size = np.abs(expected).max()
            np.testing.assert_allclose(
                native.run(inputs)["y"], expected, rtol=1e-4, atol=3e-6 * size
            )


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_adapters_add_their_products_to_quantized_ones(
    tmp_path: Path, product: str, num_threads: int
) -> None:
    random = np.random.default_rng(6)
    num_inputs, rank, num_outputs = 416, 24, 100
    weight = random.normal(size=(num_inputs, num_outputs)).astype(np.float32)
    a, b = factors(num_inputs, rank, num_outputs, np.float16)
    native = load_native(graph(tmp_path, product, weight, a, b), num_threads)
    for adapters in ([1], [2, 0, 2, 1, 3, 3, 0, 1, 2, 3, 1], [1] * 40):
        inputs = inputs_of(num_inputs, adapters, length=5)
        with_adapters = native.run(inputs)["y"].copy()
        without = native.run({**inputs, "adapters": np.zeros(len(adapters), np.int32)})["y"]
        exact = inputs["x"].astype(np.float64) @ a[adapters].astype(np.float64)
        exact = exact @ b[adapters].astype(np.float64)
        np.testing.assert_allclose(with_adapters - without, exact, rtol=2e-5, atol=2e-3)
        none = np.array(adapters) == 0
        np.testing.assert_array_equal(with_adapters[none], without[none])


@settings(max_examples=25, deadline=None)
@given(
    adapters=st.lists(st.integers(0, NUM_ADAPTERS), min_size=2, max_size=20),
    length=st.integers(1, 40),
)
def test_a_row_has_the_same_bits_alone(
    tmp_path_factory: pytest.TempPathFactory, adapters: list[int], length: int
) -> None:
    random = np.random.default_rng(7)
    weight = random.normal(size=(96, 48)).astype(np.float32)
    a, b = factors(96, 16, 48, np.float32)
    native = load_native(graph(tmp_path_factory.mktemp("bits"), "fp32", weight, a, b))
    inputs = inputs_of(96, adapters, length)
    together = native.run(inputs)["y"].copy()
    for row in range(len(adapters)):
        one = {name: array[row : row + 1] for name, array in inputs.items()}
        np.testing.assert_array_equal(native.run(one)["y"], together[row : row + 1])


@pytest.mark.parametrize("adapters", [[NUM_ADAPTERS + 1], [-1], [0, NUM_ADAPTERS + 1]])
@pytest.mark.parametrize("product", PRODUCTS)
def test_an_adapter_that_does_not_exist_is_refused(
    tmp_path: Path, product: str, adapters: list[int]
) -> None:
    weight = np.ones((32, 32), np.float32)
    native = load_native(graph(tmp_path, product, weight, *factors(32, 4, 32, np.float32)))
    with pytest.raises(Exception, match="adapter that does not exist"):
        native.run(inputs_of(32, adapters))


def test_indices_that_do_not_divide_the_rows_are_refused(tmp_path: Path) -> None:
    weight = np.ones((32, 32), np.float32)
    native = load_native(graph(tmp_path, "fp32", weight, *factors(32, 4, 32, np.float32)))
    inputs = inputs_of(32, [1, 1])
    with pytest.raises(Exception, match="dividing the rows"):
        native.run({**inputs, "adapters": np.array([1, 1, 1, 1, 1], np.int32)})


# Columns of concatenated matrices and their ranks; and the columns of the blocks that are stored.
BLOCKS = {
    "queries, keys and values": (
        "",
        [(0, 64, 3), (64, 80, 4), (80, 96, 5)],
        [(0, 3, 0, 4, 0), (3, 4, 4, 1, 0), (7, 5, 5, 1, 0)],
    ),
    "columns that end in a panel": (
        "Gelu",
        [(0, 24, 3), (24, 50, 2)],
        [(0, 3, 0, 2, 0), (3, 2, 1, 3, 0)],
    ),
    "halves of a gated matrix": (
        "SiluGate",
        [(0, 48, 4), (48, 96, 6)],
        [(0, 4, 0, 3, 1), (4, 6, 0, 3, 2)],
    ),
    "one half of a gated matrix": ("SiluGate", [(48, 96, 6)], [(0, 6, 0, 3, 2)]),
    "small halves": ("SiluGate", [(0, 20, 4), (20, 40, 4)], [(0, 8, 0, 3, 0)]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", BLOCKS)
def test_only_the_blocks_of_concatenated_matrices_are_stored(
    tmp_path: Path, name: str, dtype: Any
) -> None:
    activation, parts, stored = BLOCKS[name]
    num_inputs, num_outputs = 40, max(stop for _, stop, _ in parts)
    a, b = factors(num_inputs, sum(rank for *_, rank in parts), num_outputs, dtype)
    rows = np.repeat(np.arange(len(parts)), [rank for *_, rank in parts])
    for row, part in enumerate(rows):
        start, stop, _ = parts[part]
        b[:, row, :start], b[:, row, stop:] = 0, 0
    weight = np.random.default_rng(8).normal(size=(num_inputs, num_outputs)).astype(np.float32)
    file = graph(tmp_path, "fp32", weight, a, b, activation=activation)
    rewritten = rewrite(file, Kernels.MATMUL)
    assert rewritten is not None
    (blocks,) = (x for key, x in rewritten.packed.items() if key.endswith(".blocks"))
    assert blocks.tolist() == [list(block) for block in stored]
    of_adapters = [x.nbytes for key, x in rewritten.packed.items() if ADAPTER_PART in key]
    every = sum(array.nbytes for array in rewritten.packed.values())
    assert rewritten.weight_bytes == every - sum(of_adapters) > 0
    native = load_native(file)
    for adapters in ([1], [3, 0, 1, 1, 2, 3, 1]):
        inputs = inputs_of(num_inputs, adapters, length=4)
        expected = standard(file, inputs)
        np.testing.assert_allclose(
            native.run(inputs)["y"], expected, rtol=1e-4, atol=3e-6 * np.abs(expected).max()
        )
