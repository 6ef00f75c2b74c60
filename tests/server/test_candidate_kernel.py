"""The products with a few columns for each row equal those of the whole matrix, bit for bit."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from server.runtime.contract import CANDIDATES, BoundGraph
from server.runtime.memory import Array, Tensor
from server.runtime.ort.backend import OrtBackend
from tests.server.matmul_graphs import NEEDS_KERNEL, product

pytestmark = [NEEDS_KERNEL, pytest.mark.usefixtures("register_bits", "all_kernels")]
ALL = np.zeros((0, 0), np.int32)


def output_product(
    folder: Path, num_inputs: int, num_outputs: int, num_threads: int, *, bias: bool
) -> BoundGraph:
    """A product that computes logits."""
    rng = np.random.default_rng(num_inputs)
    file = product(folder / "a" / "1", rng.normal(size=(num_inputs, num_outputs)).astype("f4"))
    model = onnx.load(file)
    nodes, (output,) = model.graph.node, model.graph.output
    name = "logits"
    if bias:
        nodes.append(onnx.helper.make_node("Add", ["y", "bias"], [name]))
        values = rng.normal(size=num_outputs).astype("f4")
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, "bias"))
    else:
        (last,) = (node for node in nodes if node.output[0] == "y")
        last.output[0] = name
    output.name = name
    onnx.save(model, file)
    return OrtBackend("cpu", num_threads).load(file, (), takes_candidates=True).bind({})


def random_candidates(num_rows: int, num_outputs: int, width: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    ids = np.full((num_rows, width), -1, np.int32)
    for row in ids:
        count = rng.integers(0, width + 1)
        row[:count] = np.sort(rng.choice(num_outputs, count, replace=False))
    return ids


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs", "width"),
    [(3, 1, 1), (64, 40, 7), (130, 523, 100), (256, 9000, 500)],
)
def test_equals_the_whole_product(
    tmp_path: Path, num_inputs: int, num_outputs: int, width: int, num_threads: int, bias: bool
) -> None:
    graph = output_product(tmp_path, num_inputs, num_outputs, num_threads, bias=bias)
    rng = np.random.default_rng(0)
    for num_rows in (1, 3, 66):
        x = rng.normal(size=(num_rows, num_inputs)).astype(np.float32)
        x[::5] = 0
        whole = graph.run({"x": x, CANDIDATES: ALL})["logits"].copy()
        assert whole.shape == (num_rows, num_outputs)
        ids = random_candidates(num_rows, num_outputs, width, num_rows)
        chosen = np.take_along_axis(whole, np.maximum(ids, 0), 1)
        expected = np.where(ids < 0, np.float32(-np.inf), chosen)
        for given in (ids, Tensor.of(ids)):
            actual = graph.run({"x": x, CANDIDATES: given})["logits"]
            np.testing.assert_array_equal(actual, expected)
        np.testing.assert_array_equal(graph.run({"x": x, CANDIDATES: ALL})["logits"], whole)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_row_gives_non_finite_logits(tmp_path: Path, bad: float) -> None:
    graph = output_product(tmp_path, 40, 30, 1, bias=True)
    x = np.ones((3, 40), np.float32)
    ids = np.tile(np.arange(5, dtype=np.int32), (3, 1))
    expected = graph.run({"x": x, CANDIDATES: ids})["logits"].copy()
    x[1, 7] = bad
    actual = graph.run({"x": x, CANDIDATES: ids})["logits"]
    assert not np.isfinite(actual[1]).any()
    np.testing.assert_array_equal(actual[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("ids", [[[30]], [[-2]], [[1], [1]]], ids=str)
def test_invalid_candidates_are_rejected(tmp_path: Path, ids: list[list[int]]) -> None:
    graph = output_product(tmp_path, 40, 30, 1, bias=False)
    with pytest.raises(Exception, match="candidate"):
        graph.run({"x": np.ones((1, 40), np.float32), CANDIDATES: np.array(ids, np.int32)})


def test_other_products_take_no_candidates(tmp_path: Path) -> None:
    file = product(tmp_path / "a" / "1", np.ones((8, 4), np.float32))
    graph = OrtBackend("cpu", 1).load(file, (), takes_candidates=True)
    assert graph.inputs == {"x"}
