"""Graphs that the rewriting for CUDA leaves alone, because its operators cannot compute them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from server.runtime.cuda import rewrite as rewriting
from tests.server.cuda_graphs import (
    FLOAT,
    FLOAT16,
    SIZE,
    attention,
    gated,
    make_graph,
    node,
    of_rows,
    random,
    rewrite,
    save,
    values,
)
from tests.server.cuda_operators import NEEDS_LIBRARY

pytestmark = NEEDS_LIBRARY


def with_reader(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """With another output, which reads a value."""
    model.graph.node.append(node("Neg", [name], "other"))
    return with_output(model, "other")


def with_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    model.graph.output.extend(values(FLOAT16, **{name: ("batch", 6, SIZE)}))
    return model


NORM_OF_SUM = (
    node("Add", ["x", "residual"], "sum"),
    node("LayerNormalization", ["sum", "row"], "y"),
)
RELU = (node("Add", ["x", "row"], "sum"), node("Relu", ["sum"], "y"))
UNCHANGED = {
    "a norm of a size that is no multiple of 8": of_rows(FLOAT16, 12, *NORM_OF_SUM),
    "a norm of more than the largest size": of_rows(FLOAT16, 32776, *NORM_OF_SUM),
    "a norm in fp32": of_rows(FLOAT, SIZE, *NORM_OF_SUM),
    "a norm that also gives the mean": of_rows(
        FLOAT16, SIZE, node("LayerNormalization", ["x", "row"], "y", "mean")
    ),
    "a norm along two axes": make_graph(
        [node("LayerNormalization", ["x", "scale"], "y", axis=1)],
        values(FLOAT16, x=("batch", 2, SIZE)),
        values(FLOAT16, y=("batch", 2, SIZE)),
        {"scale": random(np.float16, SIZE)},
    ),
    "ReLU of a size that is no multiple of 8": of_rows(FLOAT16, 12, *RELU),
    "ReLU in fp32": of_rows(FLOAT, SIZE, *RELU),
    "ReLU of a sum of two inputs": of_rows(
        FLOAT16, SIZE, node("Add", ["x", "residual"], "sum"), node("Relu", ["sum"], "y")
    ),
    "ReLU of a sum with another reader": of_rows(
        FLOAT16,
        SIZE,
        *RELU[:1],
        node("Relu", ["sum"], "positive"),
        node("Add", ["positive", "sum"], "y"),
    ),
    "a half with another reader": with_reader(gated(FLOAT16, {}), "a"),
    "a factor with another reader": with_reader(gated(FLOAT16, {}), "b"),
    "a gate with another reader": with_reader(gated(FLOAT16, {}), "silu"),
    "a gate of a size that is no multiple of 8": gated(FLOAT16, {}, size=12),
    "a gate in fp32": gated(FLOAT, {}),
    "a gate of halves along another axis": gated(FLOAT16, {}, axis=1),
    "a half that is an output": with_output(gated(FLOAT16, {}), "a"),
    "causal attention": attention({}, causal=1),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_leaves_other_graphs_alone(tmp_path: Path, name: str) -> None:
    assert rewrite(save(UNCHANGED[name], tmp_path)) is None


def test_without_the_library_only_what_would_be_wrong_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(of_rows(FLOAT16, SIZE, *NORM_OF_SUM), tmp_path)
    assert rewrite(path) is not None
    monkeypatch.setattr(rewriting, "CUDA_LIBRARY", tmp_path / "none.so")
    assert rewrite(path) is None
    data = rewrite(save(attention({}), tmp_path))
    assert data is not None
    made = [node.op_type for node in onnx.ModelProto.FromString(data).graph.node]
    assert {"GroupQueryAttention", "ConstantOfShape"} <= set(made)


def test_weights_stay_in_their_files(tmp_path: Path) -> None:
    data = rewrite(save(of_rows(FLOAT16, SIZE, *NORM_OF_SUM), tmp_path))
    assert data is not None
    (row,) = onnx.ModelProto.FromString(data).graph.initializer
    assert row.data_location == TensorProto.EXTERNAL
