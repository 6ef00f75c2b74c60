"""Ranges and sums of positions that the rewriting for CUDA simplifies, on a CPU."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from server.runtime.cuda.one_token import take_one_token
from server.runtime.cuda.ranges import convert_ranges_to_int32
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.rewrites import apply_rewrites
from tests.server.cuda_graphs import make_graph, node, values

CONSTANTS: dict[str, Array] = {
    "zero": np.array(0, np.int64),
    "one": np.array(1, np.int64),
    "one32": np.array(1, np.int32),
    "two32": np.array(2, np.int32),
    "two": np.array(2, np.int64),
    "whole": np.array([-1], np.int64),
    "axis": np.array([1], np.int64),
}


def operators(model: onnx.ModelProto) -> list[str]:
    return [each.op_type for each in model.graph.node]


def run(model: onnx.ModelProto, **inputs: Array) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    outputs: list[Array] = session.run(None, inputs)
    return outputs


def range_of(
    first: str = "zero", step: str = "one", shape: tuple[int, ...] = ()
) -> onnx.ModelProto:
    """``arange(x.item())`` as PyTorch exports it."""
    nodes = [
        node("Reshape", ["x", "whole"], "flat"),
        node("Gather", ["flat", "zero"], "item"),
        node("Cast", ["item"], "limit", to=TensorProto.INT64),
        node("Range", [first, "limit", step], "y"),
    ]
    inputs, outputs = values(TensorProto.INT32, x=shape), values(TensorProto.INT64, y=("n",))
    return make_graph(nodes, inputs, outputs, CONSTANTS)


def simplify(model: onnx.ModelProto) -> bool:
    index = GraphIndex(model.graph, Path())
    return apply_rewrites(model.graph, convert_ranges_to_int32(index))


def test_a_range_reads_its_limit_as_it_is_given() -> None:
    model, x = range_of(), np.array(5, np.int32)
    (expected,) = run(model, x=x)
    assert simplify(model)
    assert operators(model) == ["Constant", "Constant", "Range", "Cast"]
    np.testing.assert_array_equal(run(model, x=x)[0], expected, strict=True)


@pytest.mark.parametrize(
    "model",
    [range_of(first="one"), range_of(step="two"), range_of(shape=(1,))],
    ids=["from 1", "in steps of 2", "of a vector"],
)
def test_other_ranges_stay(model: onnx.ModelProto) -> None:
    assert not simplify(model)


def decoder(*, last: str) -> onnx.ModelProto:
    """Positions of new tokens, and the last one of each row: ``cached + new - last``."""
    nodes = [
        node("Shape", ["token_ids"], "columns", start=1, end=2),
        node("Squeeze", ["columns"], "count"),
        node("Range", ["zero", "count", "one"], "offsets"),
        node("Unsqueeze", ["num_cached_tokens", "axis"], "column"),
        node("Cast", ["column"], "first", to=TensorProto.INT64),
        node("Add", ["first", "offsets"], "positions"),
        node("Identity", ["positions"], "y"),
        node("Add", ["num_cached_tokens", "num_new_tokens"], "total"),
        node("Sub", ["total", last], "end"),
        node("Identity", ["end"], "z"),
    ]
    int32, int64 = TensorProto.INT32, TensorProto.INT64
    rows = dict.fromkeys(("num_cached_tokens", "num_new_tokens", "logit_positions"), ("rows",))
    inputs = [*values(int64, token_ids=("rows", "columns")), *values(int32, **rows)]
    outputs = [*values(int64, y=("rows", "columns")), *values(int32, z=("rows",))]
    inner = values(int64, first=("rows", 1), positions=("rows", "columns"))
    return make_graph(nodes, inputs, outputs, CONSTANTS, inner)


@pytest.mark.parametrize(("last", "is_last"), [("one32", True), ("two32", False)])
def test_one_new_token_is_at_the_number_of_cached_ones(last: str, is_last: bool) -> None:
    model, cached = decoder(last=last), np.array([3, 0], np.int32)
    inputs = {"num_cached_tokens": cached, "num_new_tokens": np.ones(2, np.int32)}
    inputs |= {"logit_positions": np.arange(2, dtype=np.int32)}
    ids = np.zeros((2, 1), np.int64)
    expected = run(model, token_ids=ids, **inputs)
    assert take_one_token(model.graph)
    found = operators(model)
    assert not {"Range", "Shape"} & set(found)
    assert found.count("Add") == (0 if is_last else 1)
    for one, other in zip(run(model, token_ids=ids, **inputs), expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
